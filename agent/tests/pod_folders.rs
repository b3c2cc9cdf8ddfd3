//! Whose a tape in the folder of a pod is: the pod's, when a process in the pod's cgroup holds it.

use memtape_agent::testing::{MemoryRank, SMALL};
use memtape_core::identity::Identity;

use super::{Said, World};

const POD_UID: &str = "3b0a9c4e-11f2";

const PID: u32 = 500;

/// Namespace and pod UID of a tape in the folder of a pod of `team-a`, as announced after `change`;
/// empty where they are not known, none when the tape is refused.
fn announced(change: impl FnOnce(&mut World, &mut MemoryRank)) -> Option<(String, String)> {
    let mut world = World::new(0, |_| ());
    let name = format!("team-a_train-0_{POD_UID}/a.tape");
    let identity = Identity { job: "job".to_string(), ..Identity::default() };
    let (tapes, now) = (world.tapes.clone(), world.now);
    let mut rank = MemoryRank::start_at(&tapes, (&name, 7), now, (7, PID), &identity, SMALL);
    rank.show_pid(PID);
    change(&mut world, &mut rank);
    world.connect();
    (0..4).for_each(|_| world.tick());
    let mut ups = world.said.iter().filter_map(|said| match said {
        Said::RankUp(up) => up.owner.clone(),
        _ => None,
    });
    let owner = ups.next_back()?;
    assert_eq!(owner.namespace.is_empty(), owner.is_namespace_unknown);
    Some((owner.namespace, owner.pod_uid))
}

#[test]
fn a_tape_belongs_to_a_pod_whose_process_holds_it() {
    let of_cgroup = |cgroup: &str| announced(|world, _| world.node.run_in(PID, cgroup));
    let named = Some(("team-a".to_string(), POD_UID.to_string()));
    assert_eq!(of_cgroup(&format!("/kubepods/besteffort/pod{POD_UID}/8")), named);
    assert_eq!(of_cgroup(&format!("/../../../besteffort/pod{POD_UID}/8")), named);
    for other in ["/user.slice/user-7.slice", "/kubepods/pod00000000-1111/8", "/"] {
        assert_eq!(of_cgroup(other), None, "{other}: of another pod, or of none");
    }
    // A cgroup that cannot be read, a holder that is not seen, a process that got the number of the
    // holder later, and a tape that is found dead.
    let unknown = Some((String::new(), String::new()));
    assert_eq!(of_cgroup("/../8"), unknown);
    assert_eq!(announced(|_, rank| rank.show_pid(0)), unknown);
    let later = |world: &mut World, _: &mut MemoryRank| {
        world.connect();
        (0..4).for_each(|_| world.tick());
        world.node.run_in(PID, &format!("/kubepods/besteffort/pod{POD_UID}/8"));
        // Changes are announced after a minute.
        (0..200).for_each(|_| world.tick());
    };
    assert_eq!(announced(later), unknown);
    assert_eq!(announced(|_, rank| rank.kill()), unknown);
}

#[test]
fn a_copy_whose_process_is_not_seen_keeps_no_tape_out() {
    let mut world = World::new(0, |_| ());
    let identity = |job: &str| Identity { job: job.to_string(), ..Identity::default() };
    let (tapes, now) = (world.tapes.clone(), world.now);
    let start = |name: &str, uid: u32, job: &str| {
        let name = format!("team-a_train-0_{POD_UID}/{name}.tape");
        MemoryRank::start_at(&tapes, (&name, uid), now, (7, PID), &identity(job), SMALL)
    };
    // Copies of another user, and of the same one: their locks name no process.
    let _copies = [start("a", 8, "copy-8"), start("b", 7, "copy-7")];
    world.connect();
    (0..4).for_each(|_| world.tick());
    let rank = start("c", 7, "job");
    rank.show_pid(PID);
    world.node.run_in(PID, &format!("/kubepods/besteffort/pod{POD_UID}/8"));
    (0..4).for_each(|_| world.tick());
    let ups = world.said.iter().filter_map(|said| match said {
        Said::RankUp(up) => Some((up.job.as_str(), up.owner.as_ref()?.namespace.as_str())),
        _ => None,
    });
    let ups: Vec<_> = ups.collect();
    assert_eq!(ups, [("copy-8", ""), ("copy-7", ""), ("job", "team-a")]);
}
