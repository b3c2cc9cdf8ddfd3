//! Any bytes as requests of HTTP, to the real router of a coordinator.
//!
//! A request is text: a line with the method and the path, a line for each header, an empty line,
//! the body. Two equals signs on a line of their own begin the next one. Requests whose first line
//! begins with a space go to the router that has a file of roles.

use std::cell::RefCell;

use memtape_coordinator::testing::{Answered, Asked, FuzzedRouter};

thread_local! {
    static ROUTER: RefCell<FuzzedRouter> = RefCell::new(start());
}

fn start() -> FuzzedRouter {
    let folder = std::env::temp_dir().join(format!("memtape-fuzz-{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&folder); // of an earlier process
    std::fs::create_dir_all(&folder).expect("a folder");
    FuzzedRouter::start(&folder).expect("a coordinator")
}

/// Asks all of them; none may break the coordinator.
pub(crate) fn ask(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    for request in text.split("\n==\n").take(8) {
        let Some(asked) = parse(request) else { continue };
        let Some(sent) = asked.request() else { continue };
        let answer = ROUTER.with_borrow_mut(|router| router.answer(sent, asked.is_open));
        check(request, &answer.unwrap_or_else(|| panic!("no answer in time to {request:?}")));
    }
}

fn parse(text: &str) -> Option<Asked<'_>> {
    let (head, body) = text.split_once("\n\n").unwrap_or((text, ""));
    let mut lines = head.lines();
    let first = lines.next()?;
    let is_open = !first.starts_with(' ');
    let (method, path) = first.trim_start().split_once(' ')?;
    let headers = lines.map(|line| line.split_once(':').map(|(name, value)| (name, value.trim())));
    let mut headers: Vec<_> = headers.collect::<Option<_>>()?;
    if !headers.iter().any(|(name, _)| name.eq_ignore_ascii_case("host")) {
        headers.push(("host", "localhost:7771"));
    }
    Some(Asked { method, path, headers, body: body.as_bytes(), is_open })
}

fn check(request: &str, answer: &Answered) {
    let Answered { status, kind, body } = answer;
    let text = String::from_utf8_lossy(body);
    // 503 is said of what is not there at this moment, with a reason.
    assert!(*status < 500 || *status == 503, "{status} to {request:?}: {text}");
    if kind.starts_with("application/json") {
        let value: serde_json::Value = serde_json::from_slice(body)
            .unwrap_or_else(|error| panic!("{error} in the answer to {request:?}: {text}"));
        let is_error = *status >= 400;
        assert_eq!(value.get("error").is_some(), is_error, "{status} to {request:?}: {text}");
    }
}
