//! Answers that are read slowly, and others who wait for their memory.

use memtape_core::limits::{ANSWERS_BYTES_MAX, ANSWERS_BYTES_PER_CALLER_MAX};

use super::*;
use crate::quota::Quotas;

/// An answer of a caller whose client reads nothing.
async fn unread(quotas: &Quotas, caller: &str, bytes: u64) -> Arc<Unsent> {
    let unsent = Arc::<Unsent>::default();
    unsent.belongs_to(quotas.caller(caller));
    let reservation = quotas.reserve_answer(quotas.caller(caller), bytes, false, None).await;
    unsent.keep(reservation.expect("it does not stop"));
    unsent.begin(&[], bytes);
    quotas.sent(&unsent);
    unsent
}

#[tokio::test(start_paused = true)]
async fn slow_readers_lock_no_caller_out() {
    let quotas = Quotas::new(memtape_core::capacity::Division::of(None));
    let mut slow = Vec::new();
    for caller in ["a", "b", "c", "d"] {
        for _ in 0..4 {
            slow.push(unread(&quotas, caller, ANSWERS_BYTES_PER_CALLER_MAX / 4).await);
        }
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    assert_eq!(quotas.answers.bytes(), ANSWERS_BYTES_MAX);
    let begin = Instant::now();
    for caller in ["admin", "operator", "viewer"] {
        unread(&quotas, caller, 1 << 20).await;
    }
    assert!(begin.elapsed() <= 2 * GIVES_WAY_AFTER, "{:?}", begin.elapsed());
    assert_eq!(slow.iter().filter(|of| of.is_cut()).count(), 1);
    // Those who wait for their own answers cut none of others.
    let own = quotas.reserve_answer(quotas.caller("a"), ANSWERS_BYTES_PER_CALLER_MAX, false, None);
    assert!(tokio::time::timeout(Duration::from_secs(30), own).await.is_err());
    assert_eq!(slow.iter().filter(|of| of.is_cut()).count(), 1);
}

#[tokio::test(start_paused = true)]
async fn an_answer_keeps_the_memory_of_its_unsent_bytes_for_a_time() {
    let quotas = Quotas::new(memtape_core::capacity::Division::of(None));
    let unsent = Arc::<Unsent>::default();
    let before = quotas.reserve_answer(quotas.caller("a"), 16 << 20, false, None).await;
    let whole = vec![7; 3 * PIECE_BYTES + 1];
    let made = quotas.reserve_answer(quotas.caller("a"), whole.len() as u64, false, before).await;
    unsent.keep(made.unwrap());
    unsent.begin(&whole, whole.len() as u64);
    let mut sent = Vec::new();
    for pieces in (0..4).rev() {
        unsent.check().unwrap();
        sent.extend(unsent.next().unwrap());
        let expected = (whole.len() - sent.len()) as u64;
        assert_eq!(unsent.bytes(), expected, "{pieces}");
        assert_eq!(quotas.answers.bytes(), expected.div_ceil(1024) << 10);
    }
    assert!(sent == whole && unsent.next().is_none());
    // A larger answer than was reckoned, which is read too slowly.
    let slow = unread(&quotas, "a", 1 << 20).await;
    let more = quotas.reserve_answer(quotas.caller("a"), 5 << 20, false, slow.take()).await;
    assert_eq!((more.as_ref().unwrap().bytes(), quotas.answers.bytes()), (5 << 20, 5 << 20));
    slow.keep(more.unwrap());
    tokio::time::sleep(Duration::from_secs(ANSWER_STALLED_SECONDS_MAX)).await;
    slow.check().unwrap();
    tokio::time::sleep(Duration::from_secs(ANSWER_MIB_SECONDS_MAX)).await;
    assert_eq!((slow.check(), quotas.answers.bytes()), (Err(TooSlow), 0));
}
