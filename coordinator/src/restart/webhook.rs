//! A webhook: a CloudEvent in JSON, signed as Standard Webhooks has it: HMAC-SHA256 over id, time
//! and body, the id the same over all tries, so that the receiver can tell a repetition.

use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use memtape_core::action::TargetKind;
use ring::hmac;
use tokio::time::sleep;

use crate::restart::target::{Done, Order, Running, Target, failed, outcome, refused};
use memtape_disk::clock;

/// Waits before the tries. A restart that is late is worse than none, so the schedule is short.
const TRIES: [Duration; 3] = [Duration::ZERO, Duration::from_secs(2), Duration::from_secs(10)];

/// Endpoint for requests of a restart: a CloudEvent, signed as in Standard Webhooks.
#[derive(Clone, PartialEq, Eq)]
pub struct Webhook {
    /// The URL.
    pub url: String,
    /// The secret of the signature, as `whsec_` and base64, or as plain text; none leaves the
    /// request unsigned.
    pub secret: Option<String>,
}

/// Leaves out the secret.
impl std::fmt::Debug for Webhook {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let secret = self.secret.as_ref().map(|_| "…");
        formatter.debug_struct("Webhook").field("url", &"…").field("secret", &secret).finish()
    }
}

/// A webhook, and the time for each try.
#[derive(Clone, Debug)]
pub(crate) struct Caller {
    pub(crate) webhook: Webhook,
    pub(crate) timeout: Duration,
}

impl Target for Caller {
    fn kind(&self) -> TargetKind {
        TargetKind::Webhook
    }

    fn mistake(&self) -> Option<&'static str> {
        let is_sound = is_http_url(&self.webhook.url);
        (!is_sound).then_some("the webhook must be a URL such as https://host/path")
    }

    fn run<'a>(&'a self, order: &'a Order) -> Running<'a> {
        Box::pin(async { outcome(run(self, order).await) })
    }
}

/// True for an address that HTTP can be spoken with.
pub(crate) fn is_http_url(url: &str) -> bool {
    url.starts_with("http://") || url.starts_with("https://")
}

async fn run(Caller { webhook, timeout }: &Caller, order: &Order) -> Done {
    let client = reqwest::Client::builder()
        .timeout(*timeout)
        .redirect(reqwest::redirect::Policy::none())
        .build()
        .map_err(|error| refused(format!("the webhook cannot be called: {error}")))?;
    let body = event(order).to_string();
    // A receiver that broke down may have restarted the job before; one that was not reached, or
    // sends elsewhere, has not.
    let (mut why, mut is_sure) = (String::new(), true);
    let not_taken = |is_sure, why| if is_sure { refused(why) } else { failed(why) };
    for wait in TRIES {
        sleep(wait).await;
        let seconds = clock::now().wall_ns / 1_000_000_000;
        let mut request = client
            .post(&webhook.url)
            .header("content-type", "application/cloudevents+json")
            .header("webhook-id", &order.action)
            .header("webhook-timestamp", seconds.to_string());
        if let Some(secret) = &webhook.secret {
            let signature = signature(secret, &order.action, seconds, &body);
            request = request.header("webhook-signature", signature);
        }
        match request.body(body.clone()).send().await {
            Ok(answer) if answer.status().is_success() => {
                return Ok(format!("answered {}", answer.status().as_u16()));
            }
            Ok(answer) if answer.status().is_client_error() => {
                let why = format!("refused with {}", answer.status().as_u16());
                return Err(not_taken(is_sure, why));
            }
            Ok(answer) => {
                is_sure &= answer.status().is_redirection();
                why = format!("answered {}", answer.status().as_u16());
            }
            Err(error) => {
                is_sure &= error.is_connect();
                // Without the URL, which may hold a secret of its own.
                why = error.without_url().to_string();
            }
        }
    }
    Err(not_taken(is_sure, format!("not delivered in {} tries: {why}", TRIES.len())))
}

/// Text as it may go to a chat: names of jobs and functions mention no user of the chat.
fn harmless(text: &str) -> String {
    text.replace('<', "‹").replace('>', "›").replace('@', "＠")
}

/// The request as a CloudEvent. Its texts are harmless; its names are as they are.
fn event(order: &Order) -> serde_json::Value {
    let (sentence, why) = (harmless(&order.sentence), harmless(&order.why));
    let order = &Order { sentence, why, ..order.clone() };
    serde_json::json!({
        "specversion": "1.0",
        "id": order.action,
        "source": "memtape/coordinator",
        "type": "io.memtape.restart.requested",
        "subject": order.incident,
        "time": rfc3339(order.wall_ns),
        "datacontenttype": "application/json",
        "data": order,
    })
}

/// `v1,` and the base64 of the HMAC-SHA256 of `id.timestamp.body`.
fn signature(secret: &str, id: &str, seconds: i64, body: &str) -> String {
    let decoded = secret.strip_prefix("whsec_").and_then(|secret| BASE64.decode(secret).ok());
    let secret = decoded.unwrap_or_else(|| secret.as_bytes().to_vec());
    let key = hmac::Key::new(hmac::HMAC_SHA256, &secret);
    let tag = hmac::sign(&key, format!("{id}.{seconds}.{body}").as_bytes());
    format!("v1,{}", BASE64.encode(tag))
}

/// A time in UTC, as `2026-01-31T12:00:00Z`.
pub(super) fn rfc3339(wall_ns: i64) -> String {
    jiff::Timestamp::from_second(wall_ns.div_euclid(1_000_000_000)).unwrap_or_default().to_string()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    use memtape_core::action::Outcome;

    use super::*;

    #[test]
    fn times_are_rfc3339() {
        for (seconds, expected) in [
            (0, "1970-01-01T00:00:00Z"),
            (951_782_399, "2000-02-28T23:59:59Z"),
            (951_782_400, "2000-02-29T00:00:00Z"),
            (1_709_251_199, "2024-02-29T23:59:59Z"),
            (4_107_542_400, "2100-03-01T00:00:00Z"),
            (-1, "1969-12-31T23:59:59Z"),
        ] {
            assert_eq!(rfc3339(seconds * 1_000_000_000), expected);
        }
    }

    #[test]
    fn signatures_are_those_of_the_specification() {
        // The example of Standard Webhooks' own reference libraries.
        let signed = signature(
            "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw",
            "msg_p5jXN8AQM9LWM0D4loKWxJek",
            1_614_265_330,
            r#"{"test": 2432232314}"#,
        );
        assert_eq!(signed, "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=");
    }

    #[test]
    fn texts_of_a_webhook_mention_no_user() {
        let (job, sentence) = ("<!channel>".to_string(), "<!channel> @here leaks".to_string());
        let order = Order { job, sentence, ..Order::default() };
        let data = &event(&order)["data"];
        assert_eq!(data["sentence"], "‹!channel› ＠here leaks");
        assert_eq!(data["job"], "<!channel>", "the name is a key");
    }

    #[test]
    fn secrets_are_not_printed() {
        let (url, secret) = ("http://x/?token=hush".to_string(), Some("hush".to_string()));
        let webhook = Webhook { url, secret };
        assert!(!format!("{webhook:?}").contains("hush"));
    }

    /// Reads one request to its end: a connection that is closed before breaks the answer off.
    async fn take_request(stream: &mut tokio::net::TcpStream) {
        let (mut request, mut part) = (Vec::new(), [0; 4096]);
        loop {
            let length = stream.read(&mut part).await.unwrap();
            request.extend_from_slice(&part[..length]);
            let text = String::from_utf8_lossy(&request).to_lowercase();
            let Some((head, body)) = text.split_once("\r\n\r\n") else { continue };
            let mut lines = head.lines();
            let length = lines.find_map(|line| line.strip_prefix("content-length: "));
            if body.len() >= length.unwrap().parse().unwrap() {
                return;
            }
        }
    }

    /// Answers each connection with the next of these, and nothing to one without an answer.
    async fn called(answers: Vec<Option<&'static str>>) -> Outcome {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/?token=hush", listener.local_addr().unwrap());
        let serving = tokio::spawn(async move {
            for answer in answers {
                let (mut stream, _) = listener.accept().await.unwrap();
                take_request(&mut stream).await;
                if let Some(status) = answer {
                    let end = "content-length: 0\r\nconnection: close\r\n\r\n";
                    let answer = format!("HTTP/1.1 {status}\r\n{end}");
                    let _ = stream.write_all(answer.as_bytes()).await;
                }
            }
        });
        let webhook = Webhook { url, secret: None };
        let outcome =
            Caller { webhook, timeout: Duration::from_secs(5) }.run(&Order::default()).await;
        serving.abort();
        assert!(!outcome.to_string().contains("hush"), "{outcome}");
        outcome
    }

    #[tokio::test]
    async fn only_what_was_surely_not_taken_is_refused() {
        // As the coordinator does at its start.
        let _ = rustls::crypto::ring::default_provider().install_default();
        // Side by side: what is tried again waits for seconds.
        let (finished, refused, moved, broken, silent) = tokio::join!(
            called(vec![Some("204 No Content")]),
            called(vec![Some("403 Forbidden")]),
            // The server is gone after the first answer.
            called(vec![Some("302 Found")]),
            // The first try may have been taken.
            called(vec![Some("500 Oops"), Some("409 Conflict")]),
            called(vec![None, Some("409 Conflict")]),
        );
        assert!(matches!(finished, Outcome::Finished { .. }), "{finished:?}");
        assert!(matches!(refused, Outcome::Refused { .. }), "{refused:?}");
        assert!(matches!(moved, Outcome::Refused { .. }), "{moved:?}");
        assert!(matches!(broken, Outcome::Failed { .. }), "{broken:?}");
        assert!(matches!(silent, Outcome::Failed { .. }), "{silent:?}");
    }

    /// Answers each connection with this, and holds it open.
    async fn called_once(answer: &'static [u8], timeout: Duration) -> (Outcome, usize) {
        let _ = rustls::crypto::ring::default_provider().install_default();
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/?token=hush", listener.local_addr().unwrap());
        let tries = Arc::new(AtomicUsize::new(0));
        let counted = tries.clone();
        let serving = tokio::spawn(async move {
            let mut open = Vec::new();
            loop {
                let (mut stream, _) = listener.accept().await.unwrap();
                counted.fetch_add(1, Ordering::Relaxed);
                take_request(&mut stream).await;
                let _ = stream.write_all(answer).await;
                open.push(stream);
            }
        });
        let webhook = Webhook { url, secret: None };
        let outcome = Caller { webhook, timeout }.run(&Order::default()).await;
        serving.abort();
        assert!(!outcome.to_string().contains("hush"), "{outcome}");
        assert_eq!(outcome.to_string().lines().count(), 1, "{outcome}");
        (outcome, tries.load(Ordering::Relaxed))
    }

    #[tokio::test]
    async fn a_webhook_that_misbehaves_is_bounded() {
        let (long, brief) = (Duration::from_secs(20), Duration::from_millis(200));
        let lies = b"HTTP/1.1 200 OK\r\ncontent-length: 99999999999\r\n\r\nx";
        let short =
            b"HTTP/1.1 403 Forbidden\r\ncontent-length: 1\r\n\r\nno quota, and more than said";
        let moved = b"HTTP/1.1 307 Temporary Redirect\r\nlocation: http://127.0.0.1:1/\r\n\r\n";
        let garbage = b"SSH-2.0-OpenSSH_9.2\r\n";
        // Side by side: what is tried again waits for seconds.
        let (lies, short, moved, silent, half, garbage) = tokio::join!(
            called_once(lies, long),
            called_once(short, long),
            called_once(moved, long),
            called_once(b"", brief),
            called_once(b"HTTP/1.1 200", brief),
            called_once(garbage, long),
        );
        // The status counts: what follows is not waited for, whatever its length is said to be.
        let (said, tries) = lies;
        assert_eq!((said.to_string().contains("answered 200"), tries), (true, 1), "{said}");
        let (said, tries) = short;
        assert_eq!((matches!(said, Outcome::Refused { .. }), tries), (true, 1), "{said}");
        // It is not followed, to this machine's own services least of all.
        let (said, tries) = moved;
        assert_eq!((matches!(said, Outcome::Refused { .. }), tries), (true, 3), "{said}");
        assert!(said.to_string().contains("answered 307"), "{said}");
        // An answer that does not come may be to a request that was taken.
        for (said, tries) in [silent, half] {
            assert_eq!((matches!(said, Outcome::Failed { .. }), tries), (true, 3), "{said}");
        }
        let (said, _) = garbage;
        assert!(matches!(said, Outcome::Failed { .. }), "{said}");
    }
}
