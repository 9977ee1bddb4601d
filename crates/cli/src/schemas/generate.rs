//! Generates the files of docs/schemas, for `delayline` and `delayline-bench` alike.

use std::{collections::BTreeSet, env, fs, path::PathBuf};

use schemars::{
    Schema, SchemaGenerator,
    generate::SchemaSettings,
    transform::{RecursiveTransform, Transform},
};
use serde_json::{Map, Value as Json, json};

use super::SCHEMA_VERSION;

/// The name of a schema, its description, and the schemas of the objects that it is for.
pub(super) type Printed = (&'static str, &'static str, fn(&mut SchemaGenerator) -> Vec<Schema>);

/// What the names of the schemas of `delayline-bench` begin with.
const OF_BENCH: &str = "bench-";

/// The text of a schema: a line for each property.
fn text(&(name, description, shapes): &Printed) -> String {
    let mut generator = SchemaSettings::draft2020_12().for_serialize().into_generator();
    let mut shapes = shapes(&mut generator);
    let mut definitions: Map<_, _> = generator.take_definitions(true);
    shapes.iter_mut().for_each(|shape| marked(shape, name));
    let mut root = Map::from_iter([
        ("$schema".to_owned(), json!("https://json-schema.org/draft/2020-12/schema")),
        ("title".to_owned(), json!(title(name))),
        ("description".to_owned(), json!(description)),
    ]);
    match <[Schema; 1]>::try_from(shapes) {
        Ok([mut shape]) => {
            shape.remove("description");
            root.extend(shape.as_object().cloned().unwrap_or_default());
        }
        Err(shapes) => drop(root.insert("oneOf".into(), json!(shapes))),
    }
    definitions.sort_keys();
    if !definitions.is_empty() {
        root.insert("$defs".into(), json!(definitions));
    }
    let mut schema = Schema::from(root);
    RecursiveTransform(tidy).transform(&mut schema);
    let mut text = String::new();
    write(schema.as_value(), true, "", &mut text);
    text + "\n"
}

/// The command that prints it.
fn title(name: &str) -> String {
    match name.strip_prefix(OF_BENCH) {
        Some(name) => format!("delayline-bench {name}"),
        None => format!("delayline {}", name.replace('-', " ")),
    }
}

/// Adds the two properties of every object that is printed.
fn marked(shape: &mut Schema, name: &str) {
    let of = |shape: &Schema, key: &str| shape.get(key).cloned();
    let marks =
        [("schema", json!({ "const": name })), ("schema_version", json!({ "const": SCHEMA_VERSION }))];
    let required = marks.iter().map(|(mark, _)| json!(mark));
    let required: Vec<_> = required
        .chain(of(shape, "required").and_then(|it| it.as_array().cloned()).unwrap_or_default())
        .collect();
    let marks = marks.map(|(mark, schema)| (mark.to_owned(), schema));
    let own = of(shape, "properties").and_then(|it| it.as_object().cloned()).unwrap_or_default();
    shape.insert("properties".into(), Json::Object(marks.into_iter().chain(own).collect()));
    shape.insert("required".into(), json!(required));
}

/// Speaks of JSON instead of Rust, and leaves out the widths of numbers. A property that may be
/// absent is never null.
fn tidy(schema: &mut Schema) {
    if let Some(Json::String(description)) = schema.get_mut("description") {
        *description = description.replace('\n', " ").replace("`None`", "null");
    }
    if schema.get("format").and_then(Json::as_str).is_some_and(|it| it.contains("int") || it == "double") {
        schema.remove("format");
    }
    let required = schema.get("required").cloned().unwrap_or_default();
    let is_required = |name: &str| required.as_array().is_some_and(|all| all.iter().any(|it| it == name));
    let Some(Json::Object(properties)) = schema.get_mut("properties") else { return };
    for (_, property) in properties.iter_mut().filter(|(name, _)| !is_required(name)) {
        if let Some(Json::Array(types)) = property.get_mut("type") {
            types.retain(|it| it != "null");
            if let [only] = &types[..] {
                property["type"] = only.clone();
            }
        }
        if let Some(Json::Array(all)) = property.get_mut("anyOf") {
            all.retain(|it| it["type"] != "null");
        }
    }
}

/// Writes a schema: one line for each of its properties, or in one line if it has none.
fn write(value: &Json, many: bool, indent: &str, out: &mut String) {
    let deep =
        |value: &Json| ["properties", "oneOf", "anyOf", "$defs"].iter().any(|key| value.get(key).is_some());
    let inner = format!("{indent}  ");
    let (items, [open, close]): (Vec<(String, &Json)>, _) = match value {
        Json::Object(object) if many => {
            (object.iter().map(|(key, value)| (format!("{}: ", json!(key)), value)).collect(), ['{', '}'])
        }
        Json::Array(array) if many => {
            (array.iter().map(|value| (String::new(), value)).collect(), ['[', ']'])
        }
        _ => return out.push_str(&value.to_string()),
    };
    out.push(open);
    for (index, (key, value)) in items.into_iter().enumerate() {
        let name = key.trim_matches(|letter| "\": ".contains(letter));
        let many = deep(value) || ["properties", "$defs", "oneOf"].contains(&name);
        out.push_str(if index > 0 { ",\n" } else { "\n" });
        out.push_str(&inner);
        out.push_str(&key);
        write(value, many, &inner, out);
    }
    out.push('\n');
    out.push_str(indent);
    out.push(close);
}

/// Compares the files with what a program prints, or writes them.
pub(super) fn check(all: &[Printed]) {
    let folder = PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/schemas"));
    let writes = env::var_os("DELAYLINE_WRITE_SCHEMAS").is_some();
    let mut stale = Vec::new();
    for printed in all {
        let (file, text) = (folder.join(format!("{}.json", printed.0)), text(printed));
        if writes {
            fs::write(&file, text).unwrap();
        } else if fs::read_to_string(&file).unwrap_or_default() != text {
            stale.push(printed.0);
        }
    }
    assert!(
        stale.is_empty(),
        "docs/schemas is not up to date for {stale:?}; run \
         DELAYLINE_WRITE_SCHEMAS=1 cargo test --workspace --lib -- schemas"
    );
    let of_bench = |name: &str| name.starts_with(OF_BENCH);
    let names: BTreeSet<_> = all.iter().map(|printed| format!("{}.json", printed.0)).collect();
    let files = fs::read_dir(&folder).unwrap().map(|file| file.unwrap().file_name().into_string().unwrap());
    let other: Vec<_> =
        files.filter(|file| !names.contains(file) && of_bench(file) == of_bench(all[0].0)).collect();
    assert!(other.is_empty(), "docs/schemas has files that no command prints: {other:?}");
}
