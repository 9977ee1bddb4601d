//! Printed JSON, compared with docs/schemas.

use std::{fs, path::PathBuf};

use serde_json::Value as Json;

pub fn folder() -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/schemas"))
}

/// The schema of a command, by its name with dashes.
pub fn schema(name: &str) -> Json {
    let file = folder().join(format!("{name}.json"));
    let text = fs::read_to_string(&file).unwrap_or_else(|error| {
        panic!(
            "`{name}` prints JSON and has no schema ({error}): generate docs/schemas/{name}.json, as docs/reference/json.md \
             says, and have `tests/cli/schemas.rs` run the command"
        )
    });
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("{}: {error}", file.display()))
}

/// The same schema for the writer of the JSON: every printed field must be in it. A reader must
/// accept new fields, so the file itself allows them.
fn strict(schema: &mut Json) {
    match schema {
        Json::Object(object) => {
            if object.contains_key("properties") {
                object.entry("additionalProperties").or_insert(Json::Bool(false));
            }
            object.values_mut().for_each(strict);
        }
        Json::Array(array) => array.iter_mut().for_each(strict),
        _ => {}
    }
}

/// Checks a printed value against the schema that it names.
pub fn check(value: &Json) {
    let name = value["schema"].as_str().unwrap_or_else(|| panic!("no schema in {value}"));
    let mut wanted = schema(name);
    strict(&mut wanted);
    let validator = jsonschema::options().should_validate_formats(true).build(&wanted);
    let validator = validator.unwrap_or_else(|error| panic!("docs/schemas/{name}.json: {error}"));
    let wrong: Vec<_> = validator
        .iter_errors(value)
        .map(|error| format!("{} ({})", shortened(&error.to_string()), error.instance_path()))
        .collect();
    assert!(
        wrong.is_empty(),
        "it does not match docs/schemas/{name}.json: {wrong:#?}\nin {}",
        shortened(&value.to_string())
    );
}

pub fn shortened(text: &str) -> String {
    text.chars().take(3_000).collect()
}
