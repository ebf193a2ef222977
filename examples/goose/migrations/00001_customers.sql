-- +goose Up
CREATE TABLE customers (
    id   bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    name text NOT NULL UNIQUE
);
INSERT INTO customers (name) VALUES ('alice'), ('bob');

-- +goose Down
DROP TABLE customers;
