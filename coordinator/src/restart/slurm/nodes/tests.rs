//! Drains with stand-ins for Slurm's programs.

use std::fs;
use std::time::Duration;

use memtape_core::action::Outcome;

use super::*;
use crate::restart::proving::Prover;
use crate::restart::slurm::tests::{CLUSTER, POLL, asked, check_refused, printed, program};

/// Prints the lines of the file `nodes` for one node, or the drained ones. After a query of one
/// node the file `late`, a script of `sed`, changes the file.
const SINFO: &str = r#"#!/bin/sh
here=$(dirname "$0")
for word in "$@"; do
    case $word in
    --nodes=*)
        grep "^${word#--nodes=} " "$here/nodes"
        if [ -e "$here/late" ]; then
            sed -i -f "$here/late" "$here/nodes"
            rm "$here/late"
        fi
        exit 0 ;;
    --states=drain) grep "^[^ ]* drain" "$here/nodes"; exit 0 ;;
    esac
done
exit 7
"#;

/// Drains the node.
const SCONTROL: &str = r#"#!/bin/sh
here=$(dirname "$0")
echo "$*" >> "$here/asked"
node=${2#NodeName=}
sed -i "s/^$node .*/$node drained ${4#Reason=}/" "$here/nodes"
"#;

const NODES: &str = "\
gpu-1 idle none
gpu-1 idle none
gpu-2 drained a person's reason
gpu-3 down* Not responding
gpu-4 mixed none
gpu-5 allocated none
gpu-6 idle none
";

fn stand_ins(scontrol: &str) -> (tempfile::TempDir, Drain) {
    let folder = tempfile::tempdir().unwrap();
    program(folder.path(), "sinfo", SINFO);
    program(folder.path(), "scontrol", scontrol);
    fs::write(folder.path().join("nodes"), NODES).unwrap();
    let path = format!("{}:/usr/bin:/bin", folder.path().display()).into();
    (folder, Drain(Slurm { timeout: Duration::from_secs(10), path: Some(path), poll: POLL }))
}

fn order(node: &str, action: &str) -> Order {
    let (node, action) = (node.to_string(), action.to_string());
    Order { node, action, prover: Prover::Always, ..Order::default() }
}

#[tokio::test]
async fn a_node_is_drained_only_where_it_is_in_use() {
    let (folder, drain) = stand_ins(SCONTROL);
    for (node, why) in [
        ("gpu-2", "node gpu-2 is drained already: nothing was done"),
        ("gpu-3", "node gpu-3 is down* already"),
        ("gpu-9", "Slurm has no node gpu-9"),
        ("gpu-[1-9]", "has no name that Slurm can know"),
        ("", "has no name"),
    ] {
        check_refused(&drain.run(&order(node, "act-0000001")).await, why);
    }
    assert_eq!(asked(folder.path()), "", "nothing was changed");
    let done = drain.run(&order("gpu-1", "act-0000001")).await;
    assert_eq!(done, Outcome::Finished { said: "drained node gpu-1".to_string() });
    let update = "update NodeName=gpu-1 State=DRAIN Reason=memtape act-0000001: GPU memory was not \
                  given back\n";
    assert_eq!(asked(folder.path()), update);
    check_refused(&drain.run(&order("gpu-1", "act-0000001")).await, "is drained already");
    assert!(matches!(drain.run(&order("gpu-4", "act-0000002")).await, Outcome::Finished { .. }));
    // Two are kept out: the person's is not counted.
    let why = "2 nodes are kept out already, and at most 2 may be: nothing was done";
    check_refused(&drain.run(&order("gpu-5", "act-0000003")).await, why);
    assert_eq!(asked(folder.path()).lines().count(), 2);
}

#[tokio::test]
async fn what_a_kill_left_is_looked_at_and_not_repeated() {
    let (folder, drain) = stand_ins(SCONTROL);
    let done = drain.run(&order("gpu-1", "act-0000001")).await;
    let looked = async |node, action| drain.resume(&order(node, action)).await.unwrap();
    assert_eq!(looked("gpu-1", "act-0000001").await, done);
    check_refused(&looked("gpu-1", "act-0000002").await, "is not kept out by this decision");
    check_refused(&looked("gpu-2", "act-0000001").await, "is not kept out by this decision");
    check_refused(&looked("gpu-6", "act-0000001").await, "is not kept out by this decision");
    assert_eq!(asked(folder.path()).lines().count(), 1);
}

#[tokio::test]
async fn a_request_that_may_have_been_taken_is_no_refusal() {
    for (scontrol, is_refused, why) in [
        ("echo 'Invalid user id' >&2; exit 1", true, "was not drained: Invalid user id"),
        ("exit 0", false, "Slurm took the request, but node gpu-1 is idle"),
        ("kill -9 $$", false, "node gpu-1 is idle"),
        ("rm \"$(dirname \"$0\")/sinfo\"", false, "it is not known whether node gpu-1 is drained"),
        (
            "rm \"$(dirname \"$0\")/sinfo\"; exit 1",
            false,
            "it is not known whether node gpu-1 is drained",
        ),
    ] {
        let (_folder, drain) = stand_ins(&format!("#!/bin/sh\n{scontrol}\n"));
        let outcome = drain.run(&order("gpu-1", "act-0000001")).await;
        assert_eq!(matches!(outcome, Outcome::Refused { .. }), is_refused, "{outcome:?}");
        assert!(outcome.to_string().contains(why), "{outcome} has no {why:?}");
    }
}

/// The answer of a busy `slurmctld` does not come in time.
#[tokio::test]
async fn a_drain_that_succeeded_despite_an_scontrol_error_is_seen() {
    let late = SCONTROL.replace("sed -i", "echo").replace("\"$here/nodes\"", "> \"$here/late\"");
    for scontrol in [SCONTROL, &late] {
        let (folder, drain) = stand_ins(&format!("{scontrol}exit 1\n"));
        let done = drain.run(&order("gpu-1", "act-0000001")).await;
        assert_eq!(done, Outcome::Finished { said: "drained node gpu-1".to_string() });
        assert_eq!(asked(folder.path()).lines().count(), 1);
    }
}

/// Needs the cluster of `tests/slurm/cluster`, which sets the variable.
#[tokio::test]
async fn the_real_slurm_drains_a_node_once() {
    if std::env::var_os("MEMTAPE_TEST_SLURM").is_none() {
        // The test of requeues says that it was left out.
        return;
    }
    let _turn = CLUSTER.lock().await;
    let drain = Drain(Slurm::new(Duration::from_secs(10)));
    let node = printed("hostname", &[]);
    check_refused(&drain.run(&order("unknown-node", "act-0000001")).await, "nothing was done");
    let done = drain.run(&order(&node, "act-0000001")).await;
    assert_eq!(done, Outcome::Finished { said: format!("drained node {node}") });
    check_refused(&drain.run(&order(&node, "act-0000001")).await, "already: nothing was done");
    check_refused(&drain.run(&order(&node, "act-0000002")).await, "already: nothing was done");
    assert_eq!(drain.resume(&order(&node, "act-0000001")).await, Some(done));
    let other = drain.resume(&order(&node, "act-0000002")).await.unwrap();
    check_refused(&other, "is not kept out by this decision");
    // For the other test.
    printed("scontrol", &["update", &format!("NodeName={node}"), "State=RESUME"]);
}
