-- +goose Up
CREATE TABLE orders (
    id        bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    customer  bigint NOT NULL REFERENCES customers,
    placed_at timestamptz NOT NULL DEFAULT now()
);

-- +goose Down
DROP TABLE orders;
