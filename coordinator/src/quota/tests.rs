//! Tests of quotas: who waits for whom.

use std::pin::pin;
use std::task::Poll;

use memtape_core::identity::owner::Owner;
use memtape_core::limits::{
    ANSWERS_BYTES_MAX, ANSWERS_BYTES_PER_CALLER_MAX, MESSAGE_MIB_SECONDS_MAX, SNAPSHOT_BYTES_MAX,
    UPLOADS_BYTES_PER_NODE_MAX, UPLOADS_WAITING_MAX,
};
use tokio::time::{Instant, sleep};

use super::*;

fn quotas() -> Quotas {
    Quotas::new(Division::of(None))
}

/// Polls a future once.
async fn is_waiting(future: &mut (impl Future + Unpin)) -> bool {
    std::future::poll_fn(|context| Poll::Ready(pin!(&mut *future).poll(context).is_pending())).await
}

const STALL: Duration = Duration::from_secs(MESSAGE_MIB_SECONDS_MAX);

#[tokio::test]
async fn reservations_wait_in_order() {
    let quota = Arc::new(ByteQuota::new(10 << 10));
    let first = quota.reserve(8 << 10).await;
    assert_eq!((quota.bytes(), quota.waits.load(Relaxed)), (8 << 10, 0));
    let (send, mut entered) = tokio::sync::mpsc::unbounded_channel();
    // A large one, then a small one that would fit: it does not overtake.
    for (place, bytes) in [(1, 9 << 10), (2, 1 << 10)] {
        let (inner, send) = (quota.clone(), send.clone());
        tokio::spawn(async move {
            let share = inner.reserve(bytes).await;
            let _ = send.send((bytes, share));
        });
        while quota.waits.load(Relaxed) < place {
            tokio::task::yield_now().await;
        }
    }
    drop(first);
    let (bytes, share) = entered.recv().await.expect("the first in the queue");
    assert_eq!(bytes, 9 << 10);
    drop(share);
    assert_eq!(entered.recv().await.expect("the second").0, 1 << 10);
    // More than fits at all is let in alone.
    while quota.bytes() > 0 {
        tokio::task::yield_now().await;
    }
    let all = quota.reserve(u64::MAX).await;
    assert_eq!(quota.bytes(), 10 << 10);
    drop(all);
}

#[tokio::test]
async fn a_full_queue_of_uploads_refuses() {
    let quotas = quotas();
    let mut inside = Vec::new();
    let nodes: Vec<String> = (0..UPLOADS_WAITING_MAX).map(|of| format!("node-{of}")).collect();
    for of in &nodes[..FIRST_CHUNKS_MAX] {
        inside.push(quotas.queue_upload(of).await.expect("a permit"));
    }
    let mut waiting = Vec::new();
    for of in &nodes[FIRST_CHUNKS_MAX..] {
        let mut queued = Box::pin(quotas.queue_upload(of));
        assert!(is_waiting(&mut queued).await, "no more than {FIRST_CHUNKS_MAX} first chunks");
        waiting.push(queued);
    }
    assert!(quotas.queue_upload("other").await.is_none());
    assert_eq!(quotas.deferred.load(Relaxed), 1);
    drop(inside.pop());
    assert!(waiting.remove(0).await.is_some());
}

#[tokio::test]
async fn silent_uploads_of_one_node_hold_up_no_other() {
    let quotas = quotas();
    let mut inside = Vec::new();
    for _ in 0..UPLOADS_AT_ONCE_PER_NODE_MAX {
        inside.push(quotas.queue_upload("silent").await.expect("a permit"));
    }
    let mut waiting = Vec::new();
    for _ in UPLOADS_AT_ONCE_PER_NODE_MAX..UPLOADS_PER_NODE_MAX {
        let mut queued = Box::pin(quotas.queue_upload("silent"));
        assert!(
            is_waiting(&mut queued).await,
            "no more than {UPLOADS_AT_ONCE_PER_NODE_MAX} of a node"
        );
        waiting.push(queued);
    }
    assert!(quotas.queue_upload("silent").await.is_none(), "too many of a node");
    assert!(quotas.queue_upload("other").await.is_some());
    drop(inside.pop());
    assert!(waiting.remove(0).await.is_some());
}

/// The disk is slow. A node holds its part, whatever streams its messages came on, and those of
/// others are decoded.
#[tokio::test]
async fn messages_of_one_node_that_are_not_stored_hold_up_no_other() {
    let quotas = quotas();
    let mut held = Vec::new();
    for _ in 0..2 {
        let node = quotas.node("evil");
        held.push(quotas.reserve_report(&node, REPORTS_WAITING_BYTES_PER_NODE_MAX / 2).await);
    }
    let node = quotas.node("evil");
    let mut more = Box::pin(quotas.reserve_report(&node, 1024));
    assert!(is_waiting(&mut more).await, "the node has no more than its part");
    assert_eq!(quotas.reports.bytes(), REPORTS_WAITING_BYTES_PER_NODE_MAX);
    let other = quotas.node("node-a");
    let mut of_other = Box::pin(quotas.reserve_report(&other, MESSAGE_DECODED_BYTES_MAX));
    assert!(!is_waiting(&mut of_other).await, "the largest message of another node");
    assert_eq!(quotas.reports.waits.load(Relaxed), 1);
    held.pop();
    assert!(!is_waiting(&mut more).await);
}

/// Makes all uploads of a node that it may, again and again, each as large as can be; none of
/// them brings anything.
fn stall(quotas: &Arc<Quotas>, node: &'static str) {
    for _ in 0..UPLOADS_PER_NODE_MAX {
        let quotas = quotas.clone();
        tokio::spawn(async move {
            while let Some(queued) = quotas.queue_upload(node).await {
                let _permit = quotas.reserve_upload(queued, SNAPSHOT_BYTES_MAX as u64).await;
                sleep(STALL).await;
            }
        });
    }
}

/// Uploads a snapshot as large as can be; how long it waits.
async fn waits(quotas: &Quotas, node: &str) -> Duration {
    let begin = Instant::now();
    let queued = quotas.queue_upload(node).await.expect("a permit");
    let _permit = quotas.reserve_upload(queued, SNAPSHOT_BYTES_MAX as u64).await;
    begin.elapsed()
}

#[tokio::test(start_paused = true)]
async fn stalled_uploads_of_a_node_hold_up_no_other() {
    let quotas = Arc::new(quotas());
    stall(&quotas, "evil-1");
    sleep(STALL / 2).await;
    assert_eq!(quotas.uploads.bytes(), UPLOADS_BYTES_PER_NODE_MAX);
    for _ in 0..100 {
        assert_eq!(waits(&quotas, "node-a").await, Duration::ZERO);
        sleep(STALL / 7).await;
    }
    // Two of them fill the quota, and every other node waits for one upload of each at most.
    stall(&quotas, "evil-2");
    for _ in 0..100 {
        let waited = waits(&quotas, "node-a").await;
        assert!(waited <= 2 * STALL, "{waited:?}");
        sleep(STALL / 7).await;
    }
}

#[test]
fn an_unused_name_is_forgotten() {
    let quotas = quotas();
    let node = quotas.node("node-a");
    assert!(Arc::ptr_eq(&node, &quotas.node("node-a")));
    assert!(!Arc::ptr_eq(&node, &quotas.node("node-b")));
    let permit = node.uploads.clone().try_acquire_owned();
    assert!(permit.is_ok() && quotas.node("node-a").uploads.available_permits() == 1);
    (0..300).for_each(|number| drop(quotas.node(&format!("node-{number}"))));
    assert!(quotas.nodes.lock().unwrap().len() <= 2);
    assert!(Arc::ptr_eq(&node, &quotas.node("node-a")));
}

/// Reserves an answer, if that is possible at once.
async fn reserve(quotas: &Quotas, caller: &str, bytes: u64) -> Option<Reservation> {
    let mut reserving =
        std::pin::pin!(quotas.reserve_answer(quotas.caller(caller), bytes, true, None));
    std::future::poll_fn(|context| match reserving.as_mut().poll(context) {
        Poll::Ready(permit) => Poll::Ready(permit),
        Poll::Pending => Poll::Ready(None),
    })
    .await
}

#[test]
fn a_caller_has_a_number_of_requests_at_once() {
    let quotas = quotas();
    let (a, b) = (quotas.caller("a"), quotas.caller("b"));
    let mut of_a: Vec<_> = (0..REQUESTS_IN_PROGRESS_MAX).map(|_| a.begin_request()).collect();
    assert!(of_a.iter().all(Option::is_some));
    assert!(quotas.caller("a").begin_request().is_none() && b.begin_request().is_some());
    of_a.pop();
    assert!(a.begin_request().is_some());
}

#[tokio::test]
async fn a_caller_has_at_most_a_quarter_of_the_bytes() {
    let quotas = quotas();
    let half = ANSWERS_BYTES_PER_CALLER_MAX / 2;
    let of_a = [reserve(&quotas, "a", half).await, reserve(&quotas, "a", half).await];
    assert!(of_a.iter().all(Option::is_some));
    assert!(reserve(&quotas, "a", half).await.is_none());
    assert_eq!(quotas.answers.bytes(), ANSWERS_BYTES_PER_CALLER_MAX);
    for caller in ["b", "c", "d"] {
        // Freed at once.
        assert!(reserve(&quotas, caller, ANSWERS_BYTES_PER_CALLER_MAX).await.is_some());
    }
    drop(of_a);
    assert!(reserve(&quotas, "a", ANSWERS_BYTES_PER_CALLER_MAX).await.is_some());
}

#[tokio::test]
async fn each_caller_has_a_share_of_the_quota_of_all() {
    let quotas = quotas();
    let mut of_a = Vec::new();
    for _ in 0..LARGE_ANSWERS_PER_CALLER_MAX {
        of_a.push(reserve(&quotas, "a", 1024).await.expect("a permit"));
    }
    assert!(reserve(&quotas, "a", 1024).await.is_none());
    let rest = ANSWERS_BYTES_MAX - quotas.answers.bytes();
    let of_b = reserve(&quotas, "b", rest).await.expect("another caller's permit");
    assert!(reserve(&quotas, "c", 1024).await.is_none(), "no memory is left");
    drop(of_b);
    assert!(reserve(&quotas, "c", 1024).await.is_some());
    drop(of_a.pop());
    assert!(reserve(&quotas, "a", 1024).await.is_some());
    drop(of_a);
    assert_eq!(quotas.answers.bytes(), 0);
    assert!(reserve(&quotas, "d", 1).await.is_some());
    assert_eq!(quotas.callers.lock().unwrap().len(), 1, "callers are forgotten");
}

/// A user changes ranks at full rate, by subordinate ids too: another user's changes pass.
#[test]
fn changes_of_one_user_use_up_none_of_another() {
    let mut rates = rank_changes();
    let of = |node, uid, account| holder(node, Owner { uid, account, ..Owner::default() }.key());
    let mut taken = 0;
    for number in 0..2 * NODE_CHANGES_AT_ONCE_MAX as u32 {
        taken += u64::from(rates.take(7, of("n", 100_000 + number % 9, Some(2001))).is_ok());
    }
    assert_eq!(taken, OWNER_CHANGES_AT_ONCE_MAX);
    assert!(rates.check(7, of("n", 2001, None)).is_err());
    assert!(rates.take(7, of("n", 2002, Some(2002))).is_ok());
    assert!(rates.take(7, of("other", 2001, None)).is_ok(), "another node's");
}

#[test]
fn a_flood_of_refusals_floods_no_log() {
    let mut logged = logged_refusals();
    let lines = (0..100_000).filter(|index| logged.take(index * 1_000_000, 1).is_ok());
    // 100 s of a refusal each millisecond.
    assert!((10..=20).contains(&lines.count()) && logged.take(0, 2).is_ok());
}

/// A job has a death on every node after an outage.
#[test]
fn captures_of_a_job_on_every_node_are_taken() {
    let mut rates = agent_captures();
    let take = |node| rates.take(7, holder(&format!("node-{node}"), "prod")).is_ok();
    assert!((0..NODES_MAX).all(take));
}
