"""A shop. It makes a master of products and a topic, then it sells.

KAFKA=localhost:9092 python producer.py prepare
KAFKA=localhost:9092 python producer.py sell --rate 2000
"""

from __future__ import annotations

import argparse
import json
import os
import time
from itertools import count
from pathlib import Path
from uuid import uuid4

from confluent_kafka import KafkaError, KafkaException, Producer
from confluent_kafka.admin import AdminClient, NewTopic

import semistream as ss
from semistream.workload import ZipfKeys, products, scattered

TOPIC = "shop-sales"
PRODUCTS = 100_000
UNKNOWN = 200
"""So many more are sold, of which the master knows nothing yet."""
SECOND = 1_000_000_000


def prepare(broker: dict[str, str]) -> None:
    """The master and the topic, unless they are there."""
    if not Path("products.master").exists():
        catalogue = products(PRODUCTS, seed=1)
        ss.MasterTable.from_arrow(catalogue, "products.master", key="product_id")
    admin = AdminClient(broker)
    try:
        admin.create_topics([NewTopic(TOPIC, num_partitions=2)])[TOPIC].result(60)
    except KafkaException as error:
        if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
            raise


def sell(broker: dict[str, str], rate: int, number: int | None) -> None:
    """Send sales, a few popular products most of the time, until there are so many."""
    producer = Producer({**broker, "enable.idempotence": True, "linger.ms": 20})
    sold = PRODUCTS + UNKNOWN
    keys = ZipfKeys(sold, exponent=1.0, seed=time.time_ns() % SECOND)
    sent = 0
    for second in count(1):
        begun = time.monotonic()
        size = rate if number is None else min(rate, number - sent)
        chosen = scattered(keys.ranks(size), sold, seed=1).tolist()
        for place, product in enumerate(chosen):
            producer.produce(TOPIC, _message(sent + place, product))
        sent += size
        if producer.flush(60):
            raise SystemExit("Kafka does not take the sales.")
        if sent == number:
            return
        if second % 10 == 0:
            print(f"{sent:,} sales", flush=True)
        time.sleep(max(0.0, begun + 1 - time.monotonic()))


def _message(place: int, product: int) -> bytes:
    """A sale as JSON. Of a thousand, one is cut off and one has a quantity of 0."""
    quantity = 0 if place % 1000 == 500 else 1 + place % 3
    sale = {"sale_id": str(uuid4()), "product_id": product, "quantity": quantity}
    text = json.dumps(sale)
    return (text[:-10] if place % 1000 == 700 else text).encode()


def main() -> None:
    parser = argparse.ArgumentParser()
    orders = parser.add_subparsers(dest="order", required=True)
    orders.add_parser("prepare")
    selling = orders.add_parser("sell")
    selling.add_argument("--rate", type=int, default=2_000, help="sales a second")
    selling.add_argument("--number", type=int, help="how many; for ever if left out")
    asked = parser.parse_args()
    broker = {"bootstrap.servers": os.environ.get("KAFKA", "localhost:9092")}
    if asked.order == "prepare":
        prepare(broker)
    else:
        sell(broker, asked.rate, asked.number)


if __name__ == "__main__":
    main()
