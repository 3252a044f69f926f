-- +goose Up

-- A row's code: the signs of its vector under its scope's secret rotation, sealed
-- with the row's own key, so that it dies with the row. A scope too large for its
-- vectors to be in memory has its codes there instead, and reads these to get
-- them. A row without one (from before this) is coded from its vector.
ALTER TABLE memd.memories ADD COLUMN sealed_code bytea;
ALTER TABLE memd.memories ALTER COLUMN sealed_code SET STORAGE EXTERNAL;
GRANT UPDATE (sealed_code) ON memd.memories TO memd_app;

-- +goose Down
ALTER TABLE memd.memories DROP COLUMN sealed_code;
