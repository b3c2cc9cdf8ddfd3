//! The HTML of a report: one page with its own style and script, which loads nothing.
//!
//! The page forbids a browser every request, and every style and script but its own two, which it
//! names by their hashes. Without a script everything is there; only the zoom and the search of the
//! flame graphs need it. `maud` escapes every text.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use maud::{DOCTYPE, Markup, PreEscaped, html};
use memtape_proto::api::{Frame, Ledger};
use ring::digest::{SHA256, digest};

use crate::export::flamegraph::{self, drawing};
use crate::markup::shown;
use crate::render::units::{bytes, frame, signed_bytes};
use crate::report::chart;
use crate::report::content::{Fact, Flame, Report, Table, at_step};
use crate::report::source::Excerpt;

const STYLE: &str = include_str!("report.css");

/// Colours of layers in the style.
const LAYER_COLOURS: usize = 6;

/// The page of one or several reports, the first one's sentence as its title.
pub(crate) fn page(reports: &[Report<'_>]) -> String {
    let style = format!("{STYLE}{}", flamegraph::STYLE);
    let policy = format!(
        "default-src 'none'; style-src '{}'; script-src '{}'; base-uri 'none'; form-action 'none'",
        hash(&style),
        hash(flamegraph::SCRIPT)
    );
    let title = reports.first().map_or("Memtape", |report| report.sentence.as_str());
    html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta http-equiv="Content-Security-Policy" content=(policy);
                meta name="viewport" content="width=device-width, initial-scale=1";
                meta name="color-scheme" content="light dark";
                meta name="referrer" content="no-referrer";
                title { (shown(title)) }
                style { (PreEscaped(style)) }
            }
            body {
                @for report in reports { (one(report)) }
                script { (PreEscaped(flamegraph::SCRIPT)) }
            }
        }
    }
    .into_string()
}

fn hash(of: &str) -> String {
    format!("sha256-{}", STANDARD.encode(digest(&SHA256, of.as_bytes())))
}

fn one(report: &Report<'_>) -> Markup {
    let at_step = at_step(report.evidence_step);
    html! {
        main {
            header {
                p class="subject" { "Memtape report: " (shown(&report.subject)) }
                h1 { (shown(&report.sentence)) }
            }
            (facts("", &report.key_facts))
            (facts("What to do", &report.remedy))
            @if let Some(source) = &report.source { (excerpt(source)) }
            (stack(report))
            @if let Some(of) = &report.chart {
                section { h2 { "Ranks over time" } (chart::drawing(of)) }
            }
            @for flame in &report.flames { (flame_graph(flame)) }
            (list(&format!("{}{at_step}", report.evidence_title), &report.evidence))
            (list(&format!("Evidence against it{at_step}"), &report.against))
            (list("What else it may be", &report.alternatives))
            @for (title, of) in &report.ledgers { (ledger(title, of)) }
            @for table in &report.tables { (rows(table)) }
            (facts("The job", &report.job))
            (list("Notes", &report.notes))
            (facts("How this report was made", &report.made))
        }
    }
}

fn facts(title: &str, facts: &[Fact]) -> Markup {
    html! {
        @if !facts.is_empty() {
            section {
                @if !title.is_empty() { h2 { (title) } }
                dl {
                    @for (name, value) in facts { dt { (name) } dd { (shown(value)) } }
                }
            }
        }
    }
}

fn list(title: &str, lines: &[String]) -> Markup {
    html! {
        @if !lines.is_empty() {
            section {
                h2 { (title) }
                ul { @for line in lines { li { (shown(line)) } } }
            }
        }
    }
}

fn excerpt(of: &Excerpt) -> Markup {
    html! {
        section {
            h2 { "The line" }
            p class="path" { (shown(&of.file)) ":" (of.line) }
            @if of.is_newer {
                p class="warning" {
                    "This file was changed after the state that is shown: the line may be another."
                }
            }
            pre class="source" {
                @for (nth, line) in of.lines.iter().enumerate() {
                    @let number = of.first_line + nth;
                    span class=(if number == of.line { "row marked" } else { "row" }) {
                        span class="number" { (number) }
                        (shown(&line.replace('\t', "    "))) "\n"
                    }
                }
            }
        }
    }
}

fn stack(report: &Report<'_>) -> Markup {
    let class = |of: &Frame| if report.culprit.as_ref() == Some(of) { "marked" } else { "" };
    html! {
        @if !report.stack.is_empty() {
            section {
                h2 { "Stack, innermost first" }
                ol class="stack" {
                    @for of in &report.stack {
                        li class=(class(of)) { (shown(&frame(of))) }
                    }
                }
            }
        }
    }
}

fn flame_graph(flame: &Flame<'_>) -> Markup {
    html! {
        section class="flame" {
            h2 { (shown(&flame.title)) }
            p { (drawing::summary(&flame.tree)) ". The outermost frame is at the top." }
            svg width="100%" height=(drawing::height_px(&flame.tree)) role="img" {
                (drawing::boxes(&flame.tree))
            }
        }
    }
}

fn ledger(title: &str, of: &Ledger) -> Markup {
    let known: Vec<(&str, u64)> =
        of.layers.iter().filter_map(|layer| Some((layer.layer.as_str(), layer.bytes?))).collect();
    let unknown: Vec<&str> = of
        .layers
        .iter()
        .filter(|layer| layer.bytes.is_none())
        .map(|layer| layer.layer.as_str())
        .collect();
    let sum = known.iter().fold(0_u64, |sum, (_, bytes)| sum.saturating_add(*bytes));
    let whole = of.device_bytes.unwrap_or(sum).max(sum).max(1);
    let percent = |bytes: u64| bytes as f64 / whole as f64 * 100.0;
    html! {
        section {
            h2 { (shown(title)) }
            svg class="ledger" width="100%" height="18" role="img" {
                title { (shown(title)) }
                rect class="layer-rest" width="100%" height="18" {}
                @for (nth, (x, width)) in offsets(&known, percent).into_iter().enumerate() {
                    rect class=(colour(nth)) height="18"
                        x=(format!("{x:.2}%")) width=(format!("{width:.2}%")) {}
                }
            }
            div class="scroll" {
                table {
                    @for (nth, (name, size)) in known.iter().enumerate() {
                        (layer(&bytes(*size), Some(nth), name))
                    }
                    @if let Some(rest) = of.unaccounted_bytes {
                        (layer(signed_bytes(rest).trim_start_matches('+'), None, "unaccounted"))
                    }
                    @if let Some(device) = of.device_bytes {
                        (layer(&bytes(device), None, "the device"))
                    }
                }
            }
            @if !unknown.is_empty() {
                p { "Not known: " (shown(&unknown.join(", "))) "." }
            }
        }
    }
}

/// A row of a ledger, with the colour of its layer.
fn layer(size: &str, colour_of: Option<usize>, name: &str) -> Markup {
    html! {
        tr {
            td class="number" { (size) }
            td {
                @if let Some(nth) = colour_of {
                    svg class="swatch" width="10" height="10" {
                        rect class=(colour(nth)) width="10" height="10" {}
                    }
                    " "
                }
                (shown(name))
            }
        }
    }
}

/// The class of a layer's colour.
fn colour(nth: usize) -> String {
    format!("layer{}", nth % LAYER_COLOURS)
}

fn offsets(of: &[(&str, u64)], percent: impl Fn(u64) -> f64) -> Vec<(f64, f64)> {
    let mut x = 0.0;
    let offset = |(_, bytes): &(&str, u64)| {
        let width = percent(*bytes);
        let at = x;
        x += width;
        (at, width)
    };
    of.iter().map(offset).collect()
}

fn rows(table: &Table) -> Markup {
    let is_number = |nth: usize| table.columns.get(nth).is_some_and(|of| of.starts_with('>'));
    let class = |nth: usize| if is_number(nth) { "number" } else { "" };
    html! {
        @if !table.rows.is_empty() {
            section {
                h2 { (shown(&table.title)) }
                div class="scroll" {
                    table {
                        tr {
                            @for (nth, title) in table.columns.iter().enumerate() {
                                th class=(class(nth)) { (title.trim_start_matches('>')) }
                            }
                        }
                        @for row in &table.rows {
                            tr {
                                @for (nth, cell) in row.iter().enumerate() {
                                    td class=(class(nth)) { (shown(cell)) }
                                }
                            }
                        }
                    }
                }
                @if table.left_out > 0 { p { (table.left_out) " more are not shown." } }
            }
        }
    }
}

#[cfg(test)]
#[path = "page_tests.rs"]
mod tests;
