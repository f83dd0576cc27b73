-- PostgreSQL runs this when it is empty. A sale that came twice would be an error.
CREATE TABLE shop_sales (
    sale_id    text PRIMARY KEY,
    product_id bigint NOT NULL,
    quantity   integer NOT NULL,
    name       text,
    brand      text,
    price      double precision
);
