//! Refusals that the audit has.

use super::*;

#[tokio::test]
async fn too_many_requests_hide_no_other_refusal() {
    let folder = tempfile::tempdir().unwrap();
    let (_coordinator, api, _events, _queues) = start(folder.path());
    let peer = Peer::new(SocketAddr::from(([127, 0, 0, 1], 1)));
    let refuse = |why: &Refused| {
        let problem = refuse(&api, (&peer, 1, Some("alice")), "GET /tokens".to_string(), why);
        problem.status
    };
    for _ in 0..100 {
        let status = refuse(&Refused::TooMany(Duration::from_secs(1)));
        assert_eq!(status, StatusCode::TOO_MANY_REQUESTS);
    }
    let name = "alice\u{202e}".to_string();
    assert_eq!(refuse(&Refused::NoRole(name)), StatusCode::FORBIDDEN);
    let entries = api.door.audit.settled();
    let subjects: Vec<&str> = entries.iter().map(|entry| entry.subject.as_str()).collect();
    assert_eq!(subjects.len(), 1, "{subjects:?}");
    assert!(subjects[0].starts_with(r"GET /tokens: alice\u{202e} has no role"), "{subjects:?}");
}
