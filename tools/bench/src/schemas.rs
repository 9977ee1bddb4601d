//! The JSON Schemas of the output of `delayline-bench` with `--json`, in docs/schemas.

#[path = "../../../crates/cli/src/schemas/generate.rs"]
mod generate;

use schemars::JsonSchema;

use delayline_cli::program::SCHEMA_VERSION;
use generate::Printed;

use crate::{
    cmd::{conformance, plan, probe, run},
    compare, fill,
};

const ALL: &[Printed] = &[
    ("bench-compare", "The figures of each layout.", |generator| {
        vec![compare::Report::json_schema(generator)]
    }),
    ("bench-conformance", "The answers of a program.", |generator| {
        vec![conformance::Report::json_schema(generator)]
    }),
    ("bench-fill", "The figures of a broker with many waiting messages.", |generator| {
        vec![fill::Report::json_schema(generator)]
    }),
    ("bench-plan", "The load of a workload.", |generator| vec![plan::Shown::json_schema(generator)]),
    ("bench-probe", "The lateness of test messages.", |generator| {
        vec![probe::Report::json_schema(generator)]
    }),
    ("bench-run", "The measured capacity of a broker; `plan --bench` reads it.", |generator| {
        vec![run::Shown::json_schema(generator)]
    }),
];

#[test]
fn the_files_are_the_schemas_of_what_is_printed() {
    generate::check(ALL);
}
