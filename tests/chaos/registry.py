"""All attacks by name. A new one is a module with an `ATTACK`, and a line here."""

from __future__ import annotations

from tests.chaos import (
    crashes,
    damage,
    forgery,
    fuzz,
    logs,
    object_store,
    pipelines,
    shed,
    small_disk,
    storage_faults,
)
from tests.chaos.attack import Attack

ATTACKS: dict[str, Attack] = {
    attack.name: attack
    for attack in (
        damage.ATTACK,
        *forgery.ATTACKS,
        shed.ATTACK,
        logs.ATTACK,
        fuzz.ATTACK,
        *storage_faults.ATTACKS,
        crashes.ATTACK,
        small_disk.ATTACK,
        object_store.ATTACK,
        *pipelines.ATTACKS,
    )
}
