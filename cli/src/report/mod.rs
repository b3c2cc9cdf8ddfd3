//! The report: one HTML file to attach to a ticket, which loads nothing.
//!
//! It is the coordinator's page (`coordinator/web`) as one file: its script, its style sheet, and
//! the answers of the API that its views ask for. So the report shows the figures that the page
//! shows. For files the one answer is the output of `memtape analyze --json`.
//!
//! The file forbids a browser every request, and every style and script but its own two, which it
//! names by their hashes. The answers are data to a browser: untrusted text stays text.

pub(crate) mod answers;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use memtape_coordinator::{PAGE_SCRIPT as SCRIPT, PAGE_STYLE as STYLE};
use ring::digest::{SHA256, digest};
use serde::Serialize;
use serde_json::{Map, Value};

use crate::output::json;

/// Input of the modules of a report.
#[derive(Debug, Default, Serialize)]
pub(crate) struct Report {
    /// The summary, a sentence for each job.
    pub(crate) sentences: Vec<String>,
    /// The view that is shown first, and its id.
    pub(crate) start: (&'static str, String),
    /// Answers of the API by their paths below `/api/v1/`, unescaped.
    pub(crate) answers: Map<String, Value>,
    /// Program, time and source of the report.
    pub(crate) made: String,
}

impl Report {
    /// The HTML file.
    /// Fails when the report cannot be JSON.
    pub(crate) fn page(&self) -> serde_json::Result<String> {
        let policy = format!(
            "default-src 'none'; style-src '{}'; script-src '{}'; base-uri 'none'; \
             form-action 'none'",
            hash(STYLE),
            hash(SCRIPT)
        );
        let data = embedded(self)?;
        Ok(format!(
            "<!DOCTYPE html>\n\
             <html lang=\"en\"><head><meta charset=\"utf-8\">\n\
             <meta http-equiv=\"Content-Security-Policy\" content=\"{policy}\">\n\
             <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
             <meta name=\"color-scheme\" content=\"light dark\">\n\
             <meta name=\"referrer\" content=\"no-referrer\">\n\
             <title>Memtape report</title><style>{STYLE}</style></head>\n\
             <body><div id=\"page\"></div>\
             <noscript><p>This report needs JavaScript.</p></noscript>\n\
             <script type=\"application/json\" id=\"report\">{data}</script>\n\
             <script>{SCRIPT}</script></body></html>\n"
        ))
    }
}

/// JSON made safe for HTML: without `<`, which could end the element, and without characters that
/// hide text or turn its direction. The page writes those out.
fn embedded(value: &impl Serialize) -> serde_json::Result<String> {
    Ok(json(value)?.replace('<', "\\u003c"))
}

fn hash(of: &str) -> String {
    format!("sha256-{}", STANDARD.encode(digest(&SHA256, of.as_bytes())))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// Name of the functions, files, nodes and the job of a hostile user.
    const HOSTILE: &str = "</script><script>alert(1)</script>\"'><img src=x>\u{202e}\u{0}";

    fn report(word: &str) -> Report {
        let incident = json!({ "sentence": word, "evidence": [word] });
        Report {
            sentences: vec![word.to_string()],
            answers: Map::from_iter([(format!("incidents/{word}"), incident)]),
            made: word.to_string(),
            ..Report::default()
        }
    }

    fn between<'a>(html: &'a str, start: &str, end: &str) -> &'a str {
        html.split_once(start).and_then(|(_, rest)| rest.split_once(end)).expect("both").0
    }

    #[test]
    fn what_strangers_wrote_is_data() {
        let html = report(HOSTILE).page().expect("a page");
        assert_eq!((html.matches("<script").count(), html.matches("</script").count()), (2, 2));
        assert!(!html.contains("<img") && !html.contains(['\u{202e}', '\u{0}']));
        let data = between(&html, "id=\"report\">", "</script>");
        let read: Value = serde_json::from_str(data).expect("JSON");
        assert_eq!(read["sentences"][0], HOSTILE);
    }

    #[test]
    fn a_browser_may_load_nothing_and_run_only_the_pages_own_script() {
        let html = report("train").page().expect("a page");
        let policy = between(&html, "content=\"default-src", "\"");
        assert!(policy.starts_with(" 'none'; style-src 'sha256-"), "{policy}");
        for content in
            [between(&html, "<style>", "</style>"), between(&html, "<script>", "</script>")]
        {
            assert!(policy.contains(&hash(content)), "{policy}");
        }
        for word in ["-inline'", "src=\"", "href=\"", "@import", "style=\"", "onclick="] {
            assert!(!html.contains(word), "{word}");
        }
        assert_eq!(html, report("train").page().expect("a page"));
    }
}
