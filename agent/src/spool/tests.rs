//! The spool against a disk that fills up, fails, loses its power and is damaged.

use std::collections::BTreeSet;

use memtape_core::capture::{Outcome, Part};
use memtape_core::identity::Identity;
use memtape_core::identity::owner::{Owner, Workload};
use memtape_core::tape::read::Status;
use memtape_disk::real::RealDisk;
use memtape_simulated_disk::SimulatedDisk;

use super::*;
use crate::link::wire::{AgentCaptureReason, Ownership, RankFacts, rank_down};
use crate::tapes::death::{Death, Evidence};

const BOUND: u64 = 1 << 20;

/// Opens it in a new process; earlier ones are gone.
fn open(disk: &SimulatedDisk, bytes_max: u64) -> Spool {
    disk.kill();
    Spool::open(disk.process(), bytes_max, Accounts::default()).expect("a spool")
}

fn up(tape_id: &str) -> RankUp {
    let identity = Identity { job: "job".to_string(), ..Identity::default() };
    let (owner, workload) = (Owner::default(), Workload::default());
    let of = Ownership { tape_id, owner: &owner, workload: &workload };
    wire::rank_up(of, &identity, &Status::default(), &[], None, Vec::new())
}

fn steps(tape_id: &str, first: u64, last: u64) -> Vec<RankReport> {
    let mut rank = wire::rank_report(RankFacts {
        tape_id,
        status: &Status::default(),
        step_wall_ns: 0,
        oldest_step: 0,
        host: None,
        outside: Vec::new(),
    });
    for step in first..=last {
        let record = memtape_core::tape::StepRecord {
            first_step: step,
            last_step: step,
            end_wall_ns: 1_000 + step as i64,
            ..Default::default()
        };
        rank.steps.push(wire::step_message(0, record));
    }
    vec![rank]
}

fn down(tape_id: &str) -> Outgoing {
    let death = Death { evidence: Evidence::Vanished, wall_ns: 5 };
    rank_down(tape_id, &death, 3)
}

fn capture(name: &str, snapshot: &[u8]) -> AgentCapture {
    let answer = Part {
        outcome: Outcome::Aligned,
        step: 3,
        wall_ns: 5,
        wall_error_ns: 1,
        dead: true,
        bytes: snapshot.len() as u64,
        hash: (!snapshot.is_empty()).then(|| *blake3::hash(snapshot).as_bytes()),
        ..Part::default()
    };
    wire::agent_capture((name, "tape-1"), (AgentCaptureReason::Death, 4), &answer)
}

/// Sends everything on one stream and acknowledges it: steps of each tape, ends, captures.
#[derive(Debug, Default, PartialEq)]
struct Received {
    steps: BTreeMap<String, Vec<u64>>,
    downs: Vec<String>,
    /// Captures, each with the length of its snapshot, 0 for none.
    captures: Vec<(String, usize)>,
}

fn drain(spool: &mut Spool) -> Received {
    let mut received = Received::default();
    spool.start_stream();
    for report in 1.. {
        match spool.next(100) {
            Some(Next::Down(number, down)) => {
                received.downs.push(down.tape_id);
                spool.sent_with(number, report);
            }
            Some(Next::Steps(number, ranks)) => {
                for rank in ranks {
                    let records = wire::steps_of(&rank).map(|(_, last_step)| last_step);
                    let steps = received.steps.entry(rank.tape_id.clone());
                    steps.or_default().extend(records);
                }
                spool.sent_with(number, report);
            }
            None => break,
        }
        spool.acked(report);
    }
    loop {
        let sent = spool.captures_to_announce();
        sent.iter().for_each(|(number, _)| spool.capture_sent(*number, 1 << 40));
        for (_, message) in &sent {
            if let Outgoing::AgentCapture(capture) = message
                && let Some(answer) = &capture.answer
                && answer.snapshot_hash.is_empty()
            {
                received.captures.push((answer.capture_id.clone(), 0));
            }
        }
        spool.acked(1 << 40);
        let Some((number, name)) =
            spool.next_upload().map(|(number, answer)| (number, answer.capture_id.clone()))
        else {
            if sent.is_empty() {
                break;
            }
            continue;
        };
        if let Some(snapshot) = spool.capture_snapshot(number) {
            received.captures.push((name, snapshot.bytes.len()));
            spool.forget_capture(number);
        }
    }
    spool.pass_time(u64::MAX / 2);
    received
}

fn fill(spool: &mut Spool) {
    assert!(spool.add_up(&up("tape-1")));
    assert!(spool.add_steps(&steps("tape-1", 1, 150)));
    assert!(spool.add_up(&up("tape-2")));
    assert!(spool.add_steps(&steps("tape-2", 1, 20)));
    assert!(spool.add_steps(&steps("tape-1", 151, 160)));
    spool.add_down("tape-1", down("tape-1"));
    spool.add_capture(up("tape-1"), capture("cap-1-alone", b"a snapshot"), Some(b"a snapshot"));
    assert!(spool.add_steps(&steps("tape-2", 21, 30)));
}

fn whole() -> Received {
    Received {
        steps: BTreeMap::from([
            ("tape-1".to_string(), (1..=160).collect()),
            ("tape-2".to_string(), (1..=30).collect()),
        ]),
        downs: vec!["tape-1".to_string()],
        captures: vec![("cap-1-alone".to_string(), 10)],
    }
}

#[test]
fn an_exit_status_that_is_known_later_is_kept() {
    let disk = SimulatedDisk::new(1);
    let mut spool = open(&disk, BOUND);
    fill(&mut spool);
    for is_kept in [false, true] {
        assert_eq!(spool.is_down("tape-1", true), is_kept);
        let death = Death { evidence: Evidence::Exited(Some(3)), wall_ns: 5 };
        if !is_kept {
            spool.add_down("tape-1", rank_down("tape-1", &death, 3));
        }
        drop(spool);
        spool = open(&disk, BOUND);
    }
    spool.start_stream();
    assert_eq!(drain(&mut spool).downs, ["tape-1", "tape-1"]);
}

#[test]
fn kept_entries_are_delivered_once_and_in_order() {
    let disk = SimulatedDisk::new(1);
    let mut spool = open(&disk, BOUND);
    fill(&mut spool);
    // A restart, and a stream that ends before anything is acknowledged.
    drop(spool);
    let mut spool = open(&disk, BOUND);
    assert_eq!(spool.ups().map(|up| up.tape_id.as_str()).collect::<Vec<_>>(), ["tape-1", "tape-2"]);
    assert!(spool.is_down("tape-1", false) && !spool.is_down("tape-2", false));
    assert_eq!((spool.newest_step("tape-1", 0), spool.newest_step("tape-2", 0)), (160, 30));
    spool.start_stream();
    while let Some(Next::Steps(number, _)) = spool.next(100) {
        spool.sent_with(number, 1);
    }
    assert_eq!(drain(&mut spool), whole());
    assert!(spool.is_empty());
    assert_eq!(drain(&mut spool), Received::default());
    drop(spool);
    let mut spool = open(&disk, BOUND);
    assert!(spool.is_empty() && spool.dropped() == Dropped::default());
    assert_eq!(drain(&mut spool), Received::default());
    assert!(disk.used_bytes() < 200, "{} bytes are left for nothing", disk.used_bytes());
}

#[test]
fn an_acknowledged_part_is_not_delivered_again() {
    let disk = SimulatedDisk::new(1);
    let mut spool = open(&disk, BOUND);
    fill(&mut spool);
    spool.start_stream();
    let Some(Next::Steps(number, ranks)) = spool.next(170) else { panic!("steps") };
    assert_eq!(ranks.iter().map(|rank| rank.steps.len()).sum::<usize>(), 170);
    spool.sent_with(number, 1);
    spool.acked(1);
    spool.pass_time(1 << 40);
    drop(spool);
    let received = drain(&mut open(&disk, BOUND));
    assert_eq!(received.steps["tape-1"], (151..=160).collect::<Vec<_>>());
    assert_eq!(received.steps["tape-2"], (21..=30).collect::<Vec<_>>());
    assert_eq!((received.downs.len(), received.captures.len()), (1, 1));
}

/// Fills a small spool: steps go first, then snapshots, facts stay; every drop is counted.
#[test]
fn a_full_spool_drops_the_least_valuable_entries() {
    for is_disk_full in [false, true] {
        let disk = SimulatedDisk::new(1);
        let bound = 64 << 10;
        if is_disk_full {
            disk.set_room(Some(bound));
        }
        let mut spool = open(&disk, if is_disk_full { BOUND } else { bound });
        spool.add_up(&up("tape-1"));
        for number in 0..500 {
            assert!(spool.add_steps(&steps("tape-1", number * 10 + 1, number * 10 + 10)));
        }
        let dropped = spool.dropped();
        assert!(dropped.steps > 0 && dropped.snapshots == 0 && dropped.facts == 0, "{dropped:?}");
        assert!(disk.used_bytes() <= bound);
        // Six snapshots of a fifth of the bound.
        for number in 0..6_u8 {
            let snapshot = vec![number; 13 << 10];
            let name = format!("cap-{number}-alone");
            spool.add_capture(up("tape-1"), capture(&name, &snapshot), Some(&snapshot));
        }
        spool.add_down("tape-1", down("tape-1"));
        assert!(!spool.add_steps(&steps("tape-1", 5001, 9000)), "steps displaced something");
        spool.pass_time(1 << 40);
        drop(spool);
        let mut spool = open(&disk, if is_disk_full { BOUND } else { bound });
        let dropped = spool.dropped();
        assert!(
            dropped.steps <= 5000 && dropped.snapshots >= 2 && dropped.facts == 0,
            "{dropped:?}"
        );
        let received = drain(&mut spool);
        let kept = received.steps.get("tape-1").map_or(0, |steps| steps.len() as u64);
        assert_eq!(kept + dropped.steps, 5000);
        assert_eq!((received.captures.len(), received.downs.len()), (6, 1));
        let snapshots = received.captures.iter().filter(|(_, bytes)| *bytes > 0).count() as u64;
        assert_eq!(snapshots + dropped.snapshots, 6, "{:?}", received.captures);
        // The oldest went first.
        assert!(received.captures.iter().any(|(name, bytes)| name == "cap-5-alone" && *bytes > 0));
    }
}

#[test]
fn facts_are_dropped_last_and_counted() {
    let disk = SimulatedDisk::new(1);
    let mut spool = open(&disk, 16 << 10);
    for number in 0..400 {
        spool.add_up(&up(&format!("tape{number}-0")));
        spool.add_down("tape-0", down(&format!("tape{number}-0")));
    }
    let dropped = spool.dropped();
    assert!(dropped.facts > 0 && dropped.steps == 0, "{dropped:?}");
    let received = drain(&mut spool);
    assert_eq!(received.downs.last().map(String::as_str), Some("tape399-0"));
    assert!(disk.used_bytes() <= 16 << 10);
}

/// Cuts the power during every single disk call, and some more: synced entries survive.
#[test]
fn synced_entries_survive_a_loss_of_power() {
    let calls = {
        let disk = SimulatedDisk::new(1);
        let mut spool = open(&disk, BOUND);
        let before = disk.counts().operations;
        fill(&mut spool);
        spool.pass_time(1 << 40);
        disk.counts().operations - before
    };
    for seed in 0..calls * 20 {
        let disk = SimulatedDisk::new(seed);
        let mut spool = open(&disk, BOUND);
        spool.add_up(&up("tape-0"));
        spool.add_down("tape-0", down("tape-0"));
        disk.crash_after(Some(seed % calls), true);
        spool.add_up(&up("tape-1"));
        spool.add_steps(&steps("tape-1", 1, 150));
        spool.add_steps(&steps("tape-1", 151, 160));
        spool.add_down("tape-1", down("tape-1"));
        let is_down_kept = spool.is_down("tape-1", false);
        spool.add_capture(up("tape-1"), capture("cap-1-alone", b"a snapshot"), Some(b"a snapshot"));
        let is_capture_kept = spool.captures().count() == 1;
        spool.pass_time(1 << 40);
        drop(spool);
        disk.crash_after(None, true);
        disk.power_loss();
        let mut spool = open(&disk, BOUND);
        let received = drain(&mut spool);
        assert_eq!(received.downs[0], "tape-0", "seed {seed}");
        assert!(!is_down_kept || received.downs[1..] == ["tape-1"], "seed {seed}: {received:?}");
        assert!(!is_capture_kept || received.captures.len() == 1, "seed {seed}: {received:?}");
        let kept = received.steps.get("tape-1").cloned().unwrap_or_default();
        // What was not synced may be there in part, and in any part.
        let is_known = kept.iter().all(|step| (1..=160).contains(step));
        assert!(is_known && kept.is_sorted_by(|one, next| one < next), "seed {seed}: {kept:?}");
        // And it goes on.
        assert!(spool.add_up(&up("tape-9")) && spool.add_steps(&steps("tape-9", 1, 5)));
        assert_eq!(drain(&mut spool).steps["tape-9"], [1, 2, 3, 4, 5]);
    }
}

/// Changes one byte, counted over all files in order of their names.
fn damage(disk: &SimulatedDisk, mut at: u64) {
    for (name, bytes) in disk.files() {
        if at < bytes {
            disk.flip(&name, at, 0xff);
            return;
        }
        at -= bytes;
    }
}

/// Changes one byte at many places: no damaged entry is ever delivered, and only the entries at the
/// damaged place are lost.
#[test]
fn damage_is_never_delivered() {
    let size = {
        let disk = SimulatedDisk::new(1);
        fill(&mut open(&disk, BOUND));
        disk.used_bytes()
    };
    for at in (0..size).step_by(37) {
        let disk = SimulatedDisk::new(1);
        fill(&mut open(&disk, BOUND));
        damage(&disk, at);
        let mut spool = open(&disk, BOUND);
        let received = drain(&mut spool);
        for (tape_id, steps) in &received.steps {
            let expected = &whole().steps[tape_id];
            assert!(steps.iter().all(|step| expected.contains(step)), "byte {at}: {steps:?}");
            assert!(steps.is_sorted_by(|one, next| one < next), "byte {at}: {steps:?}");
        }
        assert!(received.downs.len() <= 1 && received.captures.len() <= 1);
        assert!(received.captures.iter().all(|(_, bytes)| matches!(bytes, 0 | 10)), "byte {at}");
        assert!(spool.is_empty(), "byte {at}");
    }
}

#[test]
fn a_failing_disk_is_survived() {
    let disk = SimulatedDisk::new(1);
    let mut spool = open(&disk, BOUND);
    fill(&mut spool);
    disk.set_failing(true);
    assert!(!spool.add_steps(&steps("tape-2", 31, 40)) && !spool.add_up(&up("tape-3")));
    spool.add_capture(up("tape-1"), capture("cap-2-alone", b"b"), Some(b"b"));
    spool.pass_time(1 << 40);
    assert_eq!(spool.dropped(), Dropped { steps: 0, snapshots: 1, facts: 1 });
    disk.set_failing(false);
    assert!(spool.add_steps(&steps("tape-2", 31, 40)));
    let mut expected = whole();
    expected.steps.insert("tape-2".to_string(), (1..=40).collect());
    assert_eq!(drain(&mut spool), expected);
}

#[test]
fn a_newer_format_is_left_alone() {
    let disk = SimulatedDisk::new(1);
    let words = [FORMAT + 1, 0, 0, 0, 0, 0];
    disk.put(CURSOR, &frames::encode(&words.map(u64::to_le_bytes).concat()));
    let error = Spool::open(disk.process(), BOUND, Accounts::default()).expect_err("a refusal");
    assert!(error.to_string().contains("format 3"), "{error}");
}

/// A real folder behaves as the simulated disk does, and admits one agent.
#[test]
fn a_folder_is_a_disk() {
    let dir = tempfile::tempdir().expect("a folder");
    let path = dir.path().join("state/spool");
    let open = || Spool::open(Arc::new(RealDisk::new(&path)), BOUND, Accounts::default());
    let mut spool = open().expect("mine");
    fill(&mut spool);
    let error = open().expect_err("another's");
    assert!(error.to_string().contains("another agent"), "{error}");
    drop(spool);
    let mut spool = open().expect("mine again");
    assert_eq!(drain(&mut spool), whole());
    let left: Vec<_> = std::fs::read_dir(&path).expect("folder").flatten().collect();
    let names: BTreeSet<_> =
        left.iter().filter_map(|each| each.file_name().into_string().ok()).collect();
    assert_eq!(names, BTreeSet::from([CURSOR.to_string(), "lock".to_string()]));
}

/// A user keeps very much of each kind while another keeps a little: no entry of the other is lost,
/// also after a restart.
#[test]
fn one_user_pushes_out_nothing_of_another() {
    let disk = SimulatedDisk::new(1);
    let mut spool = open(&disk, BOUND);
    let snapshot = vec![7; 40 << 10];
    assert!(spool.add_up(&up("quiet-1")) && spool.add_steps(&steps("quiet-1", 1, 50)));
    spool.add_capture(up("quiet-1"), capture("cap-1-alone", &snapshot), Some(&snapshot));
    for round in 0..200_u64 {
        let loud = format!("loud{round}-2");
        assert!(spool.add_up(&up(&loud)), "{round}");
        // Captures and facts are worth more than steps of the same user.
        let _ = spool.add_steps(&steps(&loud, 1, 400));
        spool.add_down(&loud, down(&loud));
        let name = format!("cap-{}-alone", round + 100);
        spool.add_capture(up(&loud), capture(&name, &snapshot), Some(&snapshot));
        assert!(spool.bytes() <= BOUND, "{} bytes", spool.bytes());
        if round == 100 {
            spool = open(&disk, BOUND);
        }
    }
    spool.add_down("quiet-1", down("quiet-1"));
    let amounts = spool.amounts();
    assert!(amounts.of(2) <= BOUND / 2 && amounts.of(1) > 0, "{amounts:?}");
    let received = drain(&mut open(&disk, BOUND));
    assert_eq!(received.steps["quiet-1"], (1..=50).collect::<Vec<u64>>());
    assert!(received.downs.contains(&"quiet-1".to_string()));
    assert!(received.captures.contains(&("cap-1-alone".to_string(), snapshot.len())));
    assert!(received.captures.len() > 5, "and the newest of the other user");
}

/// A job of each of two shards, and its tape.
const JOBS: [(&str, &str); 2] = [("alpha", "tape-1"), ("beta", "tape-2")];

fn of_job(job: &str, tape_id: &str) -> RankUp {
    RankUp { job: job.to_string(), ..up(tape_id) }
}

/// Keeps some of everything of these jobs, durably.
fn keep(spool: &mut Spool, jobs: &[(&str, &str)]) {
    for (job, tape_id) in jobs {
        assert!(spool.add_up(&of_job(job, tape_id)) && spool.add_steps(&steps(tape_id, 1, 3)));
        spool.add_down(tape_id, down(tape_id));
        let name = format!("cap-{job}");
        spool.add_capture(of_job(job, tape_id), capture(&name, b"snapshot"), Some(b"snapshot"));
    }
    spool.pass_time(1 << 40);
}

/// The spool has all of this job, some of it twice if it `may_repeat`, and nothing of another one.
fn assert_has(spool: &mut Spool, (job, tape_id): (&str, &str), may_repeat: bool) {
    let mut received = drain(spool);
    if may_repeat {
        received.steps.values_mut().for_each(|steps| {
            steps.sort_unstable();
            steps.dedup();
        });
    }
    let expected = Received {
        steps: BTreeMap::from([(tape_id.to_string(), vec![1, 2, 3])]),
        downs: vec![tape_id.to_string()],
        captures: vec![(format!("cap-{job}"), b"snapshot".len())],
    };
    assert_eq!(received, expected);
}

/// A disk with a spool of both jobs, and one for each shard of two.
fn divided(bytes: impl Fn(u64) -> SimulatedDisk) -> [SimulatedDisk; 3] {
    let disks = [1, 2, 3].map(bytes);
    keep(&mut open(&disks[0], BOUND), &JOBS);
    disks
}

/// The spool of the first disk, and the spools of the shards.
fn opened(disks: &[SimulatedDisk; 3]) -> (Spool, BTreeMap<u16, Spool>) {
    let targets = disks[1..].iter().map(|disk| open(disk, BOUND));
    (open(&disks[0], BOUND), (0..).zip(targets).collect())
}

fn assert_moved(mut targets: BTreeMap<u16, Spool>, may_repeat: bool) {
    for (shard, job) in (0..).zip(JOBS) {
        let target = targets.get_mut(&shard).expect("a spool");
        assert_eq!(target.dropped(), Dropped::default());
        assert_has(target, job, may_repeat);
    }
}

#[test]
fn a_new_division_moves_every_entry_to_the_spool_of_its_job() {
    let disks = divided(SimulatedDisk::new);
    let (mut old, mut targets) = opened(&disks);
    assert!(old.divide(2, &mut targets));
    drop(old);
    assert_moved(targets, false);
    assert!(open(&disks[0], BOUND).is_empty());
}

/// Cuts the power of all disks during each call to each of them: the next start moves the rest.
#[test]
fn a_division_that_is_cut_off_anywhere_loses_nothing() {
    let calls = {
        let disks = divided(SimulatedDisk::new);
        let (mut old, mut targets) = opened(&disks);
        let before = disks.each_ref().map(|disk| disk.counts().operations);
        assert!(old.divide(2, &mut targets));
        [0, 1, 2].map(|disk| disks[disk].counts().operations - before[disk])
    };
    assert!(calls.iter().all(|calls| *calls > 5), "{calls:?}");
    for (cut, at) in (0..3).flat_map(|cut| (0..=calls[cut]).map(move |at| (cut, at))) {
        for seed in 0..4 {
            let disks = divided(|disk| SimulatedDisk::new(disk + 10 * seed));
            let (mut old, mut targets) = opened(&disks);
            disks[cut].crash_after(Some(at), true);
            let is_moved = old.divide(2, &mut targets);
            drop((old, targets));
            disks.iter().for_each(|disk| {
                disk.crash_after(None, true);
                disk.power_loss();
            });
            let (mut old, mut targets) = opened(&disks);
            assert!(old.divide(2, &mut targets), "disk {cut}, call {at}: {is_moved}");
            println!("disk {cut}, call {at}, seed {seed}");
            assert_moved(targets, true);
        }
    }
}

#[test]
fn what_a_full_or_failing_disk_does_not_take_stays_where_it_is() {
    type Fault = fn(&[SimulatedDisk; 3], bool);
    let faults: [Fault; 5] = [
        |disks, is_on| disks[1].set_room(is_on.then(|| disks[1].used_bytes() + 300)),
        |disks, is_on| disks[2].set_room(is_on.then_some(0)),
        |disks, is_on| disks[2].set_failing(is_on),
        |disks, is_on| disks[0].set_failing(is_on),
        |disks, is_on| disks[1].fail_syncs(if is_on { 99 } else { 0 }),
    ];
    for (number, fault) in faults.into_iter().enumerate() {
        let disks = divided(SimulatedDisk::new);
        let (mut old, mut targets) = opened(&disks);
        fault(&disks, true);
        assert!(!old.divide(2, &mut targets), "fault {number}");
        drop((old, targets));
        fault(&disks, false);
        let (mut old, mut targets) = opened(&disks);
        assert!(old.divide(2, &mut targets), "fault {number}");
        assert_moved(targets, true);
    }
}

#[test]
fn a_spool_that_was_not_moved_is_moved_at_the_next_start() {
    let dir = tempfile::tempdir().expect("a folder");
    let folder = dir.path();
    let open = |path: &std::path::Path| {
        Spool::open(Arc::new(RealDisk::new(path)), BOUND, Accounts::default()).ok()
    };
    let of_three = spool_of(folder, jobs_of(2, 3));
    for (path, job) in [(&*of_three, JOBS[0]), (folder, JOBS[1])] {
        keep(&mut open(path).expect("a spool"), &[job]);
    }
    let [first, second] = [0, 1].map(|shard| spool_of(folder, jobs_of(shard, 2)));
    std::fs::write(&second, "in the way").expect("a file");
    divide(folder, 2, open);
    assert!(!open(folder).expect("the old one").is_empty() && !of_three.exists());
    assert_has(&mut open(&first).expect("the first shard's"), JOBS[0], false);
    std::fs::remove_file(&second).expect("removed");
    divide(folder, 2, open);
    assert!(open(folder).expect("the old one").is_empty());
    assert_has(&mut open(&second).expect("the second shard's"), JOBS[1], true);
}

/// The announcement of a rank can be delivered before its last steps: their job is then unknown.
#[test]
fn entries_of_an_unknown_job_are_counted_when_they_are_dropped() {
    let disks = [1, 2, 3].map(SimulatedDisk::new);
    let mut old = open(&disks[0], BOUND);
    assert!(old.add_up(&of_job("alpha", "tape-1")));
    assert!(old.add_steps(&steps("tape-1", 1, 3)) && old.add_steps(&steps("tape-1", 4, 5)));
    assert!(old.add_down("tape-1", down("tape-1")));
    old.start_stream();
    let Some(Next::Steps(number, _)) = old.next(3) else { panic!("steps") };
    old.sent_with(number, 1);
    old.acked(1);
    old.pass_time(1 << 40);
    drop(old);
    let (mut old, mut targets) = opened(&disks);
    assert!(old.divide(2, &mut targets) && old.is_empty());
    drop((old, targets));
    let (_, targets) = opened(&disks);
    assert_eq!(targets[&0].dropped(), Dropped { steps: 2, snapshots: 0, facts: 1 });
}

/// A full spool fits into a full one until the agent writes to it; more stays where it is.
#[test]
fn a_division_drops_nothing_that_its_targets_keep() {
    let bound = 64 << 10;
    for (old_bound, fits) in [(bound, true), (BOUND, false)] {
        let disks = [1, 2].map(SimulatedDisk::new);
        let filled = |disk: &SimulatedDisk, bound, tape_id: &str| {
            let mut spool = open(disk, bound);
            assert!(spool.add_up(&of_job("alpha", tape_id)));
            for last in (10..=30_000).step_by(10) {
                assert!(spool.add_steps(&steps(tape_id, last - 9, last)));
            }
            spool
        };
        let mut old = filled(&disks[0], old_bound, "tape-1");
        let target = filled(&disks[1], bound, "tape-2");
        let dropped = target.dropped();
        let mut targets = BTreeMap::from([(0, target)]);
        assert_eq!((old.divide(2, &mut targets), old.is_empty()), (fits, fits));
        let target = targets.get_mut(&0).expect("the target");
        assert_eq!(target.dropped(), dropped);
        let received = drain(target).steps;
        assert_eq!(received["tape-2"].len() as u64 + dropped.steps, 30_000);
        assert_eq!(received["tape-1"].last() == Some(&30_000), fits);
    }
}

#[test]
fn a_division_opens_each_target_once_and_all_before_it_copies() {
    let dir = tempfile::tempdir().expect("a folder");
    let folder = dir.path();
    let opened = std::cell::RefCell::new(Vec::new());
    let open = |path: &std::path::Path| {
        opened.borrow_mut().push(path.to_path_buf());
        Spool::open(Arc::new(RealDisk::new(path)), BOUND, Accounts::default()).ok()
    };
    let [first, second] = [0, 1].map(|shard| spool_of(folder, jobs_of(shard, 2)));
    divide(folder, 2, open);
    assert!(!first.exists() && !second.exists(), "an empty spool has nothing to move");
    keep(&mut open(folder).expect("a spool"), &[JOBS[0], JOBS[1], ("beta", "tape-3")]);
    std::fs::write(&second, "in the way").expect("a file");
    opened.borrow_mut().clear();
    divide(folder, 2, open);
    assert_eq!(*opened.borrow(), [folder, &*first, &*second]);
    assert!(open(&first).expect("the first shard's").is_empty());
    std::fs::remove_file(&second).expect("removed");
    let with_records = |primary| shards_with_records(folder, (2, primary), open);
    assert_eq!(with_records(1), BTreeSet::new(), "the spool of the first shard is empty");
    divide(folder, 2, open);
    assert_eq!((with_records(1), with_records(0)), (BTreeSet::from([0]), BTreeSet::from([1])));
}
