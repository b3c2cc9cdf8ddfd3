//! Remedies: what an agent writes onto tapes, what it refuses, and what it reports of it.
//!
//! The tests are the recorder: they read the mailbox of a tape and write the reply.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use memtape_core::tape::layout::{Clock, StepSource, header};
use memtape_core::tape::mailbox::{Instruction, Offers, Remedy, ReplyStatus};
use memtape_proto::v1;
use memtape_proto::v1::RemedyOutcome as Outcome;
use memtape_proto::v1::coordinator_message::Body as ToAgent;

use crate::support::RunningAgent;
use crate::support::coordinator::{FakeCoordinator, Seen};
use crate::support::rank::{Rank, SMALL};
use crate::{folder, has_steps};

const ALL: &str = "gc,empty-cache,checkpoint,signal";

/// A rank whose job offers this, after 5 steps.
fn rank(dir: &Path, number: u32, offers: &str) -> Rank {
    offering(Rank::start(dir, "job", number, SMALL), offers)
}

fn offering(mut rank: Rank, offers: &str) -> Rank {
    rank.scribble(header::OFFERED, Offers::from_names(offers).word());
    rank.scribble(header::STEP_SOURCE, StepSource::OptimizerHook as u64);
    rank.train(5);
    rank
}

/// The instruction on its tape.
fn instruction(rank: &Rank) -> Option<Instruction> {
    Instruction::from_word(rank.word(header::MAILBOX))
}

/// Replies as a recorder does.
fn reply(rank: &Rank, of: Instruction, status: ReplyStatus, steps: u64) {
    rank.scribble(header::REPLY_TOOK_NS, 1234);
    rank.scribble(header::REPLY, of.reply(status, steps).word());
}

fn request(action: &str, ranks: &[&Rank], remedy: v1::Remedy, step: u64) -> v1::RemedyRequest {
    v1::RemedyRequest {
        call_id: action.to_string(),
        tape_ids: ranks.iter().map(|rank| rank.tape_id.clone()).collect(),
        remedy: remedy.into(),
        step,
        signal: v1::RemedySignal::Usr1.into(),
        valid_ms: 60_000,
    }
}

/// Sends a request; the answers that come of it until there is this number for its action.
async fn asked(
    coordinator: &FakeCoordinator,
    request: &v1::RemedyRequest,
    answers: usize,
) -> Vec<v1::RemedyAnswer> {
    let before = of(&coordinator.seen(), &request.call_id).len();
    coordinator.say(ToAgent::RemedyRequest(request.clone()));
    let mut found = reported(coordinator, &request.call_id, before + answers).await;
    found.split_off(before)
}

/// Waits until this number of answers about an action has come.
async fn reported(
    coordinator: &FakeCoordinator,
    action: &str,
    count: usize,
) -> Vec<v1::RemedyAnswer> {
    let what = format!("{count} answers about {action}");
    let enough = |seen: &Seen| Some(of(seen, action)).filter(|answers| answers.len() >= count);
    coordinator.wait(&what, enough).await
}

fn of(seen: &Seen, action: &str) -> Vec<v1::RemedyAnswer> {
    seen.remedies.iter().filter(|answer| answer.call_id == action).cloned().collect()
}

async fn started(dir: &Path, ranks: &[&Rank]) -> (FakeCoordinator, RunningAgent) {
    let coordinator = FakeCoordinator::start();
    let agent = RunningAgent::start(dir, &coordinator.url(), |_| ());
    for rank in ranks {
        coordinator.wait("its steps", |seen| has_steps(seen, rank, 5)).await;
    }
    (coordinator, agent)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_remedy_is_armed_and_its_outcome_is_reported_once() {
    let dir = folder();
    let mut rank = rank(dir.path(), 0, "gc,signal");
    // Another program wrote something there.
    rank.scribble(header::MAILBOX, 0x0707_0707_0707_0707);
    let (coordinator, agent) = started(dir.path(), &[&rank]).await;
    let offered: Vec<v1::Remedy> = coordinator.seen().ups[0].offered().collect();
    assert_eq!(offered, [v1::Remedy::Gc, v1::Remedy::Signal]);

    let gc = request("act-1", &[&rank], v1::Remedy::Gc, 8);
    let answers = asked(&coordinator, &gc, 1).await;
    assert_eq!((answers[0].outcome(), answers[0].step), (Outcome::Armed, 8), "{answers:?}");
    assert_eq!(answers[0].tape_id, rank.tape_id);
    let written = instruction(&rank).expect("an instruction");
    assert_eq!((written.remedy(), written.step()), (Remedy::Gc, 8));
    assert_ne!(written.number(), 7);
    // Another one has to wait, and the same one changes nothing.
    let other = request("act-2", &[&rank], v1::Remedy::Gc, 9);
    let refused = asked(&coordinator, &other, 1).await;
    assert!(refused[0].detail.contains("act-1"), "{refused:?}");
    assert_eq!(asked(&coordinator, &gc, 1).await[0].outcome(), Outcome::Armed);
    assert_eq!(instruction(&rank), Some(written));

    rank.train(3);
    reply(&rank, written, ReplyStatus::Done, 8);
    let answers = reported(&coordinator, "act-1", 3).await;
    let done = answers.last().expect("an answer");
    assert_eq!((done.outcome(), done.step, done.took_ns), (Outcome::Done, 8, 1234));
    coordinator.wait_for_reports(5).await;
    assert_eq!(of(&coordinator.seen(), "act-1").len(), 3, "it is reported once");
    // A second request gets the same answer, and the rank nothing to do.
    assert_eq!(asked(&coordinator, &gc, 1).await[0].outcome(), Outcome::Done);
    assert_eq!(instruction(&rank), Some(written));

    // The next instruction has another number; this one comes late.
    let late = request("act-3", &[&rank], v1::Remedy::Gc, 9);
    assert_eq!(asked(&coordinator, &late, 1).await[0].outcome(), Outcome::Armed);
    let second = instruction(&rank).expect("an instruction");
    assert_ne!(second.number(), written.number());
    rank.train(2);
    reply(&rank, second, ReplyStatus::Late, 10);
    let answers = reported(&coordinator, "act-3", 2).await;
    assert_eq!((answers[1].outcome(), answers[1].step), (Outcome::Late, 10));
    // A rank that goes on without having read it; and one that ends.
    let unread = request("act-4", &[&rank], v1::Remedy::Gc, 12);
    assert_eq!(asked(&coordinator, &unread, 1).await[0].outcome(), Outcome::Armed);
    rank.train(4);
    let answers = reported(&coordinator, "act-4", 2).await;
    assert_eq!(answers[1].outcome(), Outcome::Failed, "{answers:?}");
    let ends = request("act-5", &[&rank], v1::Remedy::Gc, 20);
    assert_eq!(asked(&coordinator, &ends, 1).await[0].outcome(), Outcome::Armed);
    rank.kill();
    let answers = reported(&coordinator, "act-5", 2).await;
    assert_eq!(answers[1].outcome(), Outcome::Failed, "{answers:?}");
    assert!(answers[1].detail.contains("ended"), "{answers:?}");
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_rank_that_cannot_be_asked_is_not() {
    let dir = folder();
    let (modest, willing) = (rank(dir.path(), 0, "gc"), rank(dir.path(), 1, ALL));
    let mut dead = rank(dir.path(), 2, ALL);
    let (turns, own) = (rank(dir.path(), 3, ALL), rank(dir.path(), 4, ALL));
    let (coordinator, agent) = started(dir.path(), &[&modest, &willing, &dead, &turns, &own]).await;
    turns.scribble(header::CLOCK, Clock::Turns as u64);
    own.scribble(header::STEP_SOURCE, StepSource::Given as u64);
    dead.kill();
    let elsewhere = folder();
    let strange = rank(elsewhere.path(), 5, ALL);
    let gc = v1::Remedy::Gc;
    let too_old = v1::RemedyRequest { valid_ms: 0, ..request("act-old", &[&willing], gc, 9) };
    let unsigned = v1::RemedyRequest { signal: 0, ..request("act-s", &[], v1::Remedy::Signal, 0) };
    let unsigned = v1::RemedyRequest { tape_ids: vec![willing.tape_id.clone()], ..unsigned };
    for (request, reason) in [
        (request("act-a", &[&modest], v1::Remedy::EmptyCache, 9), "does not offer empty-cache"),
        (request("act-b", &[&modest], v1::Remedy::Signal, 0), "does not offer signal"),
        (request("act-c", &[&strange], gc, 9), "no such tape"),
        (request("act-d", &[&dead], gc, 9), "has ended"),
        (request("act-e", &[&dead], v1::Remedy::Signal, 0), "has ended"),
        (request("act-f", &[&willing], gc, 5), "step 5 has passed"),
        (request("act-g", &[&willing], gc, 0), "no step from 1"),
        (request("act-h", &[&willing], gc, 1 << 40), "no step from 1"),
        (request("act-i", &[&willing], v1::Remedy::Unspecified, 9), "update the agent"),
        (request("act-j", &[&turns], gc, 9), "marks no steps"),
        (request("act-k", &[&own], gc, 9), "optimizer hook"),
        (request("", &[&willing], gc, 9), "no call"),
        (request(&"a".repeat(200), &[&willing], gc, 9), "no call"),
        (request("act-l", &[&willing], v1::Remedy::Withdraw, 0), "nothing of this call"),
        (too_old, "too late"),
        (unsigned, "update the agent"),
    ] {
        let answers = asked(&coordinator, &request, 1).await;
        assert_eq!(answers[0].outcome(), Outcome::Refused, "{answers:?}");
        assert!(answers[0].detail.contains(reason), "{answers:?} and not {reason:?}");
    }
    // All ranks of a request, or none.
    let both = request("act-both", &[&willing, &modest], v1::Remedy::Checkpoint, 9);
    let answers = asked(&coordinator, &both, 2).await;
    assert!(answers.iter().all(|answer| answer.outcome() == Outcome::Refused), "{answers:?}");
    assert!(answers.iter().any(|answer| answer.detail.contains("another rank")), "{answers:?}");
    for rank in [&modest, &willing, &dead, &turns, &own] {
        assert_eq!(rank.word(header::MAILBOX), 0, "a word was written");
    }
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_remedy_is_withdrawn_only_where_it_is_not_begun() {
    let dir = folder();
    let mut rank = rank(dir.path(), 0, ALL);
    let (coordinator, agent) = started(dir.path(), &[&rank]).await;
    let arm = |action: &str, step| request(action, &[&rank], v1::Remedy::Checkpoint, step);
    let withdraw = |action: &str| request(action, &[], v1::Remedy::Withdraw, 0);
    let withdraw = |action: &str| v1::RemedyRequest {
        tape_ids: vec![rank.tape_id.clone()],
        ..withdraw(action)
    };
    let (first, second, third) = (arm("act-1", 20), arm("act-2", 8), arm("act-3", 9));
    let (not_first, not_second, not_third) =
        (withdraw("act-1"), withdraw("act-2"), withdraw("act-3"));

    // Long before its step.
    assert_eq!(asked(&coordinator, &first, 1).await[0].outcome(), Outcome::Armed);
    let answers = asked(&coordinator, &not_first, 1).await;
    assert_eq!((answers[0].outcome(), answers[0].step), (Outcome::Withdrawn, 5));
    assert_eq!(rank.word(header::MAILBOX), 0);

    // The rank is at the step: it may have begun, and has.
    assert_eq!(asked(&coordinator, &second, 1).await[0].outcome(), Outcome::Armed);
    let written = instruction(&rank).expect("an instruction");
    rank.train(3);
    coordinator.say(ToAgent::RemedyRequest(not_second.clone()));
    coordinator.wait_for_reports(5).await;
    assert_eq!(of(&coordinator.seen(), "act-2").len(), 1, "it is not known yet");
    reply(&rank, written, ReplyStatus::Done, 8);
    let answers = reported(&coordinator, "act-2", 2).await;
    assert_eq!(answers[1].outcome(), Outcome::Done);

    // It may have begun, and has not: it ends a further step without a reply.
    assert_eq!(asked(&coordinator, &third, 1).await[0].outcome(), Outcome::Armed);
    rank.train(1);
    coordinator.say(ToAgent::RemedyRequest(not_third));
    coordinator.wait_for_reports(5).await;
    assert_eq!(of(&coordinator.seen(), "act-3").len(), 1, "it is not known yet");
    rank.train(1);
    let answers = reported(&coordinator, "act-3", 2).await;
    assert_eq!(answers[1].outcome(), Outcome::Withdrawn);
    // What is over is not withdrawn: the answer says how it ended.
    assert_eq!(asked(&coordinator, &not_second, 1).await[0].outcome(), Outcome::Done);
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_rank_that_stays_armed_is_never_said_to_be_refused() {
    let dir = folder();
    let (mut moved, mut lost) = (rank(dir.path(), 0, ALL), rank(dir.path(), 1, ALL));
    let (coordinator, agent) = started(dir.path(), &[&moved, &lost]).await;
    let too_old =
        |request: &v1::RemedyRequest| v1::RemedyRequest { valid_ms: 0, ..request.clone() };
    let (first, second) = (
        request("act-1", &[&moved], v1::Remedy::Checkpoint, 8),
        request("act-2", &[&lost], v1::Remedy::Checkpoint, 8),
    );
    let withdraw = v1::Remedy::Withdraw;

    // A call that is known is answered again, and taken back, however late the request is read.
    assert_eq!(asked(&coordinator, &first, 1).await[0].outcome(), Outcome::Armed);
    let answers = asked(&coordinator, &too_old(&first), 1).await;
    assert_eq!(answers[0].outcome(), Outcome::Armed, "{answers:?}");
    let not_first = too_old(&request("act-1", &[&moved], withdraw, 0));
    let answers = asked(&coordinator, &not_first, 1).await;
    assert_eq!(answers[0].outcome(), Outcome::Withdrawn, "{answers:?}");
    assert_eq!(moved.word(header::MAILBOX), 0);
    moved.train(3);

    // A word that cannot be taken back: the rank does what it was asked for, and that is reported.
    assert_eq!(asked(&coordinator, &second, 1).await[0].outcome(), Outcome::Armed);
    let written = instruction(&lost).expect("an instruction");
    std::fs::remove_file(&lost.path).expect("its tape");
    let not_second = request("act-2", &[&lost], withdraw, 0);
    let answers = asked(&coordinator, &not_second, 1).await;
    assert_eq!(answers[0].outcome(), Outcome::Armed, "{answers:?}");
    assert_eq!(instruction(&lost), Some(written));
    lost.train(3);
    reply(&lost, written, ReplyStatus::Done, 8);
    let answers = reported(&coordinator, "act-2", 3).await;
    assert_eq!(answers[2].outcome(), Outcome::Done, "{answers:?}");
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_agent_that_was_started_again_finds_its_instruction() {
    let dir = folder();
    let mut rank = rank(dir.path(), 0, ALL);
    let (coordinator, agent) = started(dir.path(), &[&rank]).await;
    let gc = request("act-1", &[&rank], v1::Remedy::Gc, 8);
    assert_eq!(asked(&coordinator, &gc, 1).await[0].outcome(), Outcome::Armed);
    let written = instruction(&rank).expect("an instruction");
    agent.stop().await;

    let (coordinator, agent) = started(dir.path(), &[&rank]).await;
    assert_eq!(asked(&coordinator, &gc, 1).await[0].outcome(), Outcome::Armed);
    assert_eq!(instruction(&rank), Some(written), "one instruction, not two");
    agent.stop().await;

    // Nor is the rank refused because the request is late, or another rank cannot be asked.
    let elsewhere = folder();
    let strange = self::rank(elsewhere.path(), 1, ALL);
    let both = request("act-1", &[&rank, &strange], v1::Remedy::Gc, 8);
    let (coordinator, agent) = started(dir.path(), &[&rank]).await;
    let outcomes = |mut answers: Vec<v1::RemedyAnswer>| {
        answers.sort_by_key(|answer| answer.tape_id != rank.tape_id);
        answers.iter().map(v1::RemedyAnswer::outcome).collect::<Vec<_>>()
    };
    let expected = [Outcome::Armed, Outcome::Refused];
    assert_eq!(outcomes(asked(&coordinator, &both, 2).await), expected);
    agent.stop().await;
    let (coordinator, agent) = started(dir.path(), &[&rank]).await;
    let late = v1::RemedyRequest { valid_ms: 0, ..both };
    assert_eq!(outcomes(asked(&coordinator, &late, 2).await), expected);
    agent.stop().await;

    // It is done while there is no agent.
    rank.train(3);
    reply(&rank, written, ReplyStatus::Done, 8);
    let (coordinator, agent) = started(dir.path(), &[&rank]).await;
    assert_eq!(asked(&coordinator, &gc, 2).await[1].outcome(), Outcome::Done);
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_signal_goes_to_ranks_that_offer_it_and_once() {
    let dir = folder();
    let counting = |number: u32| {
        let file = dir.path().join(format!("signals-{number}"));
        let mut command = Command::new("sh");
        let script = "trap 'echo USR1 >> \"$0\"' USR1; while :; do sleep 0.02; done";
        command.arg("-c").arg(script).arg(&file);
        (Rank::start_as(command, dir.path(), "job", number, SMALL), file)
    };
    let ((willing, file), (modest, other_file)) = (counting(0), counting(1));
    let (willing, modest) = (offering(willing, "signal"), offering(modest, "gc"));
    let (coordinator, agent) = started(dir.path(), &[&willing, &modest]).await;
    // The shell has to have come to its trap.
    tokio::time::sleep(Duration::from_millis(500)).await;
    let signals = |file: &Path| std::fs::read_to_string(file).unwrap_or_default().lines().count();

    // All fences come before the first signal.
    let both = request("act-1", &[&willing, &modest], v1::Remedy::Signal, 0);
    let answers = asked(&coordinator, &both, 2).await;
    assert!(answers.iter().all(|answer| answer.outcome() == Outcome::Refused), "{answers:?}");

    let one = request("act-2", &[&willing], v1::Remedy::Signal, 0);
    let answers = asked(&coordinator, &one, 1).await;
    assert_eq!(answers[0].outcome(), Outcome::Signalled, "{answers:?}");
    assert_eq!(answers[0].detail, "SIGUSR1");
    let counted = |_: &Seen| (signals(&file) == 1).then_some(());
    coordinator.wait("the signal", counted).await;
    // A call that is said twice is answered twice and carried out once.
    assert_eq!(asked(&coordinator, &one, 1).await[0].outcome(), Outcome::Signalled);
    // Nor does it stand for something else.
    let other = v1::RemedyRequest { signal: v1::RemedySignal::Term.into(), ..one };
    let answers = asked(&coordinator, &other, 1).await;
    assert_eq!(answers[0].outcome(), Outcome::Refused);
    assert!(answers[0].detail.contains("asked for something else before"), "{answers:?}");
    coordinator.wait_for_reports(10).await;
    assert_eq!((signals(&file), signals(&other_file)), (1, 0));
    // No word is written for a signal.
    assert_eq!((willing.word(header::MAILBOX), modest.word(header::MAILBOX)), (0, 0));
    agent.stop().await;
}
