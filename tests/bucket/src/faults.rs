//! Faults on order: for the next requests, one for each, or for all requests of a rule.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use http_body_util::BodyExt;
use hyper::body::Incoming;
use hyper::{Method, Request};
use tokio::sync::Notify;

/// What happens to a request.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Fault {
    /// The connection is closed once this many bytes of the body were read; nothing is written.
    Closed {
        /// Bytes of the body.
        body_bytes: usize,
    },
    /// The answer is 503; nothing is written.
    Unavailable,
    /// The answer is 403; nothing is read or written.
    Denied,
    /// The request is carried out, and the connection closed before the answer.
    AnswerLost,
    /// The request is carried out. The answer is held back until the rules are cleared, if the
    /// object contains this text then.
    Held(&'static str),
    /// The request waits so long, and is carried out then.
    Slow(Duration),
    /// No answer, as in a partition; nothing is written.
    Silent,
}

/// The requests that a fault happens to, until the rules are cleared.
#[derive(Clone, Debug)]
pub struct Rule {
    /// Access key of the client; every client when it is empty.
    pub client: &'static str,
    /// Method; every method when there is none.
    pub method: Option<Method>,
    /// A part of the path; every path when it is empty.
    pub path: &'static str,
    /// How many of 100 such requests.
    pub percent: u8,
    /// What happens to them.
    pub fault: Fault,
}

impl Rule {
    /// All requests of a client.
    pub fn of(client: &'static str, fault: Fault) -> Self {
        Self { client, method: None, path: "", percent: 100, fault }
    }

    fn is_for(&self, client: &str, request: &Request<Incoming>) -> bool {
        (self.client.is_empty() || self.client == client)
            && self.method.as_ref().is_none_or(|method| method == request.method())
            && request.uri().path().contains(self.path)
    }
}

/// The ordered faults.
#[derive(Debug, Default)]
pub(crate) struct Faults {
    ordered: Mutex<Ordered>,
    cleared: Notify,
}

#[derive(Debug, Default)]
struct Ordered {
    next: VecDeque<Fault>,
    rules: Vec<Rule>,
    /// All requests.
    requests: u64,
    /// Requests that rules were for, by which percentages are spread evenly.
    ruled: u64,
    /// Answers that are held back.
    held: usize,
}

impl Faults {
    pub(crate) fn order(&self, faults: &[Fault]) {
        self.lock().next.extend(faults);
    }

    pub(crate) fn add(&self, rule: Rule) {
        self.lock().rules.push(rule);
    }

    /// The fault of a request.
    pub(crate) fn of(&self, request: &Request<Incoming>) -> Option<Fault> {
        let mut ordered = self.lock();
        ordered.requests += 1;
        if let Some(fault) = ordered.next.pop_front() {
            return Some(fault);
        }
        let client = client(request);
        let rule = ordered.rules.iter().find(|rule| rule.is_for(client, request))?;
        let (percent, fault) = (u64::from(rule.percent), rule.fault);
        ordered.ruled += 1;
        // 37 and 100 have no common divisor: of 100 requests in a row, `percent` are chosen.
        (ordered.ruled * 37 % 100 < percent).then_some(fault)
    }

    /// Number of requests so far.
    pub(crate) fn requests(&self) -> u64 {
        self.lock().requests
    }

    /// Forgets rules, and faults that did not happen yet; returns the number of these.
    pub(crate) fn clear(&self) -> usize {
        let ordered = std::mem::take(&mut *self.lock());
        self.cleared.notify_waiters();
        ordered.next.len()
    }

    /// Waits until the rules are cleared.
    pub(crate) async fn hold(&self) {
        let cleared = self.cleared.notified();
        self.lock().held += 1;
        cleared.await;
    }

    pub(crate) fn held(&self) -> usize {
        self.lock().held
    }

    fn lock(&self) -> MutexGuard<'_, Ordered> {
        self.ordered.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The access key that signed a request; empty where it is not signed.
fn client(request: &Request<Incoming>) -> &str {
    let signed = request.headers().get("authorization").and_then(|value| value.to_str().ok());
    let after = signed.and_then(|signed| signed.split_once("Credential="));
    after.and_then(|(_, key)| key.split_once('/')).map_or("", |(key, _)| key)
}

/// Reads this many bytes of a body, or all of it.
pub(crate) async fn read(mut body: Incoming, bytes: usize) {
    let mut had = 0;
    while had < bytes {
        let Some(Ok(frame)) = body.frame().await else { return };
        had += frame.data_ref().map_or(0, |data| data.len());
    }
}
