//! The page of the HTTP API, from its OpenAPI document.

use std::fmt::Write;

use serde_json::Value;

pub(super) fn page(document: &Value) -> String {
    let mut page = String::from(
        "# HTTP API\n\nMade from the OpenAPI document of a running coordinator by a test; do not \
         edit this file.\nThe document itself is at `/api/v1/openapi.json`. All answers are JSON, \
         errors too.\n",
    );
    writeln!(page, "{}", text(&document["info"]["description"])).unwrap();
    page += "\n## Requests\n\n| request | answer | meaning |\n|---|---|---|\n";
    for (name, operation) in operations(document) {
        let meaning = text(&operation["summary"]);
        writeln!(page, "| `{name}` | {} | {meaning} |", answer(operation)).unwrap();
    }
    page += "\n## Parameters\n\n| request | parameter | type | meaning |\n|---|---|---|---|\n";
    for (name, operation) in operations(document) {
        for parameter in operation["parameters"].as_array().into_iter().flatten() {
            let (what, schema) = (text(&parameter["name"]), &parameter["schema"]);
            let place = text(&parameter["in"]);
            let meaning = match text(&parameter["description"]) {
                said if said.is_empty() => text(&schema["description"]),
                said => said,
            };
            let kind = kind(schema);
            writeln!(page, "| `{name}` | `{what}` ({place}) | {kind} | {meaning} |").unwrap();
        }
    }
    page += "\n## Objects\n";
    for (name, schema) in document["components"]["schemas"].as_object().expect("schemas") {
        write!(page, "\n### {name}\n\n").unwrap();
        add_object(schema, &mut page);
    }
    page
}

/// All operations with their names, such as `GET /api/v1/jobs`, in order of their paths.
fn operations(document: &Value) -> impl Iterator<Item = (String, &Value)> {
    let paths = document["paths"].as_object().expect("paths");
    paths.iter().flat_map(|(path, item)| {
        let methods = item.as_object().expect("operations");
        methods.iter().map(move |(method, operation)| {
            (format!("{} {path}", method.to_ascii_uppercase()), operation)
        })
    })
}

/// The type of the answer with the lowest status.
fn answer(operation: &Value) -> String {
    let answers = operation["responses"].as_object().expect("answers");
    let good = answers.iter().find(|(status, _)| status.starts_with('2'));
    good.map_or("–".to_string(), |(status, answer)| {
        format!("{status}: {}", kind(&answer["content"]["application/json"]["schema"]))
    })
}

fn add_object(schema: &Value, page: &mut String) {
    let about = text(&schema["description"]);
    if !about.is_empty() {
        writeln!(page, "{about}\n").unwrap();
    }
    let Some(fields) = schema["properties"].as_object() else {
        writeln!(page, "{}", kind(schema)).unwrap();
        return;
    };
    *page += "| field | type | meaning |\n|---|---|---|\n";
    for (name, field) in fields {
        let meaning = text(&field["description"]);
        writeln!(page, "| `{name}` | {} | {meaning} |", kind(field)).unwrap();
    }
}

/// A type in words: `integer`, `list of Rank`, `string or null`.
fn kind(schema: &Value) -> String {
    if let Some(name) = schema["$ref"].as_str() {
        let name = name.rsplit('/').next().unwrap_or_default();
        return format!("[{name}](#{})", name.to_ascii_lowercase());
    }
    for choice in ["anyOf", "oneOf", "allOf"] {
        if let Some(choices) = schema[choice].as_array() {
            return choices.iter().map(kind).collect::<Vec<_>>().join(" or ");
        }
    }
    if let Some(names) = schema["enum"].as_array() {
        let names: Vec<String> = names.iter().map(|name| format!("`{}`", text(name))).collect();
        return names.join(", ");
    }
    let names = match &schema["type"] {
        Value::Array(names) => names.iter().filter_map(Value::as_str).collect(),
        name => name.as_str().into_iter().collect::<Vec<_>>(),
    };
    let names = names.into_iter().map(|name| match name {
        "array" => format!("list of {}", kind(&schema["items"])),
        "object" if schema["additionalProperties"].is_object() => {
            format!("map to {}", kind(&schema["additionalProperties"]))
        }
        name => name.to_string(),
    });
    let names: Vec<String> = names.collect();
    if names.is_empty() { "any".to_string() } else { names.join(" or ") }
}

/// Text for a cell of a table: one line, and `<` as it is written.
fn text(value: &Value) -> String {
    let said = value.as_str().unwrap_or_default();
    let words: Vec<&str> = said.split_whitespace().collect();
    words.join(" ").replace('|', "\\|").replace('<', "&lt;")
}
