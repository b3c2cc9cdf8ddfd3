//! Proofs of a process that is stopped, and of one whose folder is gone.

use memtape_simulated_disk::SimulatedDisk;
use tokio::task::yield_now;

use super::*;

/// The process is stopped this number of times, each time between a proof and the request.
async fn check(stops: usize, is_proved: bool) {
    let disk = SimulatedDisk::new(1);
    let store = Store::open_in_turns(&disk.process()).unwrap().0;
    let (mut now, mut left) = (clock::now(), stops);
    clock::set(now);
    let stopping = async {
        loop {
            yield_now().await;
            if store.turn() && left > 0 {
                left -= 1;
                now.mono_ns += ACTION_PROOF_SECONDS_MAX * 1_000_000_000 + 1;
                clock::set(now);
            }
        }
    };
    let prover = Prover::Store(store.clone());
    let proved = tokio::select! {
        proved = prover.prove() => proved,
        () = stopping => unreachable!("it never ends"),
    };
    assert_eq!(proved.is_ok(), is_proved, "{stops}: {proved:?}");
}

#[tokio::test]
async fn a_process_that_was_stopped_after_its_proof_proves_again() {
    check(0, true).await;
    check(1, true).await;
    check(ACTION_PROOFS_MAX - 1, true).await;
    check(ACTION_PROOFS_MAX, false).await;
}

#[tokio::test]
async fn a_coordinator_whose_folder_is_gone_asks_for_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    let prover = Prover::Store(Store::open(&data).unwrap().0);
    assert_eq!(prover.prove().await, Ok(()));
    std::fs::rename(&data, folder.path().join("gone")).unwrap();
    let Err(Outcome::Refused { why }) = prover.prove().await else { panic!("it was proved") };
    assert!(why.starts_with("nothing was asked for: the data folder is gone: this"), "{why}");
    assert!(why.contains("ask the owner (`memtape cluster` names it)"), "{why}");
    assert!(Prover::default().prove().await.is_err());
}
