//! Files that pretend to be the tape of another process: refused, counted, and no rank disturbed.

use std::os::unix::fs::{MetadataExt, PermissionsExt};

use memtape_core::tape::layout::header;
use memtape_proto::v1;

use super::{FakeCoordinator, Rank, RunningAgent, SMALL, Seen, folder, has_steps};

/// What the newest report says of refused tapes, once it says this many.
fn refused(seen: &Seen, count: u64) -> Option<v1::RefusedTapes> {
    let refused = seen.reports.iter().rev().find_map(|(_, report)| report.refused)?;
    let sum = refused.copies + refused.wrong_holder + refused.other_boot + refused.no_room;
    (sum >= count).then_some(refused)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_tape_belongs_to_the_user_and_the_process_that_hold_it() {
    let dir = folder();
    let coordinator = FakeCoordinator::start();
    let mut good = Rank::start(dir.path(), "job", 0, SMALL);
    good.train(3);
    // A copy that lies there before the agent comes, one whose lock another process holds, and one
    // from before the last start of the node.
    std::fs::copy(&good.path, dir.path().join("a-copy.tape")).expect("a copy");
    let hijacked = Rank::start(dir.path(), "hijacked", 0, SMALL);
    hijacked.scribble(header::PID, u64::from(good.pid()));
    let old = Rank::start(dir.path(), "old", 0, SMALL);
    old.scribble(header::BOOT_ID, 0x1234);
    let agent = RunningAgent::start(dir.path(), &coordinator.url(), |_| ());
    coordinator.wait("the good rank", |seen| has_steps(seen, &good, 3)).await;
    let all = coordinator.wait("three refusals", |seen| refused(seen, 3)).await;
    assert_eq!((all.copies, all.wrong_holder, all.other_boot, all.no_room), (1, 1, 1, 0));

    // A restarted agent must not take the copy for the tape, dead or alive.
    agent.stop().await;
    coordinator.seen().ups.clear();
    let agent = RunningAgent::start(dir.path(), &coordinator.url(), |_| ());
    good.train(2);
    coordinator.wait("more of the good rank", |seen| has_steps(seen, &good, 5)).await;
    agent.stop().await;
    let seen = coordinator.seen();
    assert!(seen.ups.iter().all(|up| up.tape_id == good.tape_id), "{:?}", seen.ups);
    let owner = seen.ups[0].owner.clone().expect("an owner");
    assert_eq!(owner.uid, std::fs::metadata(&good.path).expect("a tape").uid());
}

#[tokio::test]
async fn a_folder_in_which_users_replace_tapes_of_others_is_refused() {
    let dir = folder();
    let mode = |mode| std::fs::set_permissions(dir.path(), PermissionsExt::from_mode(mode));
    let config = memtape_agent::Config {
        node: "node-1".to_string(),
        coordinator: "http://127.0.0.1:9".to_string(),
        tape_dirs: vec![dir.path().to_path_buf()],
        ..memtape_agent::Config::default()
    };
    mode(0o777).expect("a mode");
    let refused = memtape_agent::run(config.clone(), async {}).await.expect_err("it is refused");
    assert!(refused.to_string().contains("chmod 1777"), "{refused}");
    mode(0o1777).expect("a mode");
    memtape_agent::run(config, async {}).await.expect("a sticky folder is taken");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_folder_of_a_pod_says_whose_a_tape_is() {
    let dir = folder();
    let pod = |name: &str| {
        std::fs::create_dir(dir.path().join(name)).expect("a folder");
        dir.path().join(name)
    };
    let (one, other) = (pod("team-a_train-0_1-a"), pod("team-b_train-0_1-b"));
    let good = Rank::start(&one, "job", 0, SMALL);
    // A copy in the folder of another pod, and a tape beside the folders. Their user is the same.
    std::fs::copy(&good.path, other.join("copy.tape")).expect("a copy");
    let _beside = Rank::start(dir.path(), "job", 1, SMALL);
    let coordinator = FakeCoordinator::start();
    let agent = RunningAgent::start(dir.path(), &coordinator.url(), |config| {
        config.pod_folders = true;
    });
    // The processes of this test are in no pod: the copy is dead, and its folder names it.
    let ups = |seen: &Seen| seen.ups.first().cloned();
    let up = coordinator.wait("a dead tape", ups).await;
    coordinator.wait("two refusals", |seen| refused(seen, 2)).await;
    agent.stop().await;
    assert_eq!(coordinator.seen().ups.len(), 1);
    assert!(up.tape_id.contains("-1-b-"), "{}", up.tape_id);
    // The test may be the first process of a container.
    let owner = up.owner.expect("an owner");
    assert!(owner.is_namespace_unknown || owner.namespace == "team-b", "{owner:?}");
}
