//! The page of the metrics, from the text of `/metrics`.

use std::fmt::Write;

/// A metric, in the order in which it is exported.
#[derive(Default)]
struct Metric<'a> {
    kind: &'a str,
    help: &'a str,
    labels: Vec<&'a str>,
}

pub(super) fn page(exported: &str) -> String {
    let mut page = String::from(
        "# Metrics\n\nMade from the answer of a running coordinator by a test; do not edit this \
         file.\n`GET /metrics` is in the OpenMetrics text format. Series of ranks exist while \
         their attempt runs.\nA value that is not known is no series.\n\
         All counters except those of ranks begin at 0 when the coordinator starts.\n\n\
         | metric | kind | labels | meaning |\n|---|---|---|---|\n",
    );
    for (name, Metric { kind, help, labels }) in metrics(exported) {
        let name = if kind == "counter" { format!("{name}_total") } else { name.to_string() };
        let labels: Vec<String> = labels.iter().map(|label| format!("`{label}`")).collect();
        let labels = if labels.is_empty() { "–".to_string() } else { labels.join(", ") };
        let help = help.trim_end_matches('.').replace('|', "\\|");
        writeln!(page, "| `{name}` | {kind} | {labels} | {help} |").unwrap();
    }
    page += "\n## Reasons of `memtape_losses_total`\n\n\
             | reason | meaning | what to do |\n|---|---|---|\n";
    for [reason, meaning, remedy] in memtape_coordinator::losses() {
        writeln!(page, "| `{reason}` | {meaning} | {remedy} |").unwrap();
    }
    page
}

/// All metrics with their names: `# TYPE name kind`, `# HELP name text`, and the labels of their
/// series, which follow.
fn metrics(exported: &str) -> Vec<(&str, Metric<'_>)> {
    let mut found: Vec<(&str, Metric<'_>)> = Vec::new();
    for line in exported.lines() {
        let about = line.strip_prefix("# ").and_then(|rest| rest.split_once(' '));
        if let Some((what, (name, text))) =
            about.and_then(|(what, rest)| Some((what, rest.split_once(' ')?)))
        {
            if found.last().is_none_or(|(last, _)| *last != name) {
                found.push((name, Metric::default()));
            }
            let (_, metric) = found.last_mut().expect("one was added");
            match what {
                "TYPE" => metric.kind = text,
                "HELP" => metric.help = text,
                _ => {}
            }
        } else if let Some((_, rest)) = line.split_once('{') {
            let (_, metric) = found.last_mut().expect("its type comes before");
            for label in labels(rest) {
                if !metric.labels.contains(&label) {
                    metric.labels.push(label);
                }
            }
        }
    }
    assert!(found.len() > 10, "the metrics can be read:\n{exported}");
    found
}

/// The names in `job="train",rank="2"} 7`; no value of the test has a quote or a comma in it.
fn labels(rest: &str) -> impl Iterator<Item = &str> {
    let inner = rest.split_once('}').map_or("", |(inner, _)| inner);
    inner.split(',').filter_map(|label| Some(label.split_once('=')?.0))
}
