//! The answers about an incident: one example for each branch.

use strum::VariantArray as _;

use super::*;
use crate::detector::Forecast;
use crate::diagnosis::{Restart, RestartAnswer};
use crate::identity::end::End;
use crate::incident::answers::{Answer, Answers, Context, RankContext};

const MIB: u64 = 1 << 20;

const RANK: RankContext<'_> = RankContext {
    step: 812,
    step_wall_ns: 81,
    has_ended: false,
    node: "node-a",
    is_sized: true,
    limitations: &[],
};

const ALIVE: Context<'_> =
    Context { rank: Some(RANK), capture_step: Some(149), related: None, is_silenced: false };

const ENDED: Context<'_> = Context { rank: Some(RankContext { has_ended: true, ..RANK }), ..ALIVE };

const NOTHING: Context<'_> =
    Context { rank: None, capture_step: None, related: None, is_silenced: false };

/// An open incident about growth without a diagnosis.
fn found(growth: Growth) -> Incident {
    Incident {
        id: "inc-1".to_string(),
        serial: 1,
        job: "train".to_string(),
        attempt: 0,
        growth,
        clock: Clock::Steps,
        former: Vec::new(),
        joined: Vec::new(),
        related: None,
        failure: None,
        seconds_to_oom: None,
        seconds_to_job_end: None,
        diagnosis: None,
        urgency: Urgency::Page,
        reported_in: None,
        thread: Thread::default(),
        capture_id: None,
        tries: 0,
        not_compared: None,
        opened_wall_ns: 70,
        updated_wall_ns: 70,
        closed: None,
    }
}

/// The same of a layer, without a forecast.
fn of_layer(layer: Layer) -> Incident {
    found(Growth { layer, steps_to_oom: None, ..leak(2) })
}

/// A leak that was compared at its last step, with this class.
fn known(class: Class) -> Incident {
    let growth = Growth { last_step: 150, ..leak(2) };
    let seen = Some(growth);
    let diagnosis = Diagnosis { explained_ppm: 980_000, seen, ..*diagnosis(class, 36) };
    Incident {
        diagnosis: Some(Box::new(diagnosis)),
        capture_id: Some("cap-1".to_string()),
        ..found(growth)
    }
}

/// The same without a line.
fn lineless(class: Class) -> Incident {
    let mut of = known(class);
    of.diagnosis.as_mut().expect("known").culprit = None;
    of
}

fn closed(of: Incident) -> Incident {
    let reason = ClosedReason::AttemptEnded;
    Incident { closed: Some(Closed { wall_ns: 90, reason }), ..of }
}

fn check(answer: &Answer, expected: [&str; 3]) {
    assert_eq!([&*answer.title, &*answer.text, &*answer.detail], expected);
}

#[test]
fn the_rank_is_an_example_where_several_grow() {
    let check = |layer: Layer, scope: Scope, context: &Context<'_>, text: &str, detail: &str| {
        let of = found(Growth { layer, scope, ..leak(2) });
        check(&of.answers(context).rank, ["Which rank", text, detail]);
    };
    let own = "rank 2";
    check(Layer::Allocated, Scope::OneRank, &ALIVE, own, "device 0, node-a");
    check(Layer::Allocated, Scope::OneRank, &NOTHING, own, "device 0");
    let role = "the ranks of one role, such as rank 2";
    check(Layer::Host, Scope::Role, &ALIVE, role, "node-a");
    check(Layer::Host, Scope::AllRanks, &NOTHING, "all ranks, such as rank 2", "");
    check(Layer::Progress, Scope::OneRank, &ALIVE, own, "node-a");
}

#[test]
fn of_a_standstill_the_rank_is_the_one_that_is_behind() {
    let stands = Growth { layer: Layer::Progress, scope: Scope::AllRanks, ranks: 4, ..leak(2) };
    let check = |of: Incident, text: &str, detail: &str| {
        check(&of.answers(&ALIVE).rank, ["Which rank", text, detail]);
    };
    check(found(stands), "rank 2", "node-a, all ranks stand still");
    check(closed(found(stands)), "rank 2", "node-a, all ranks stood still");
    let some = Growth { ranks: 3, ..stands };
    check(found(some), "rank 2", "node-a, 3 of 4 ranks stand still");
    let equal = Growth { onset_step: stands.last_step, ..stands };
    let none = "all ranks: none is behind the others";
    check(found(equal), none, "node-a, all ranks stand still");
}

#[test]
fn a_forecast_names_its_span_and_its_step() {
    let forecast = Some(Forecast { p10: 1_100, p50: 1_200, p90: 1_400 });
    let growth = Growth { steps_to_oom: Some(1_200), forecast, ..leak(2) };
    let of = Incident { seconds_to_oom: Some(1_500), ..found(growth) };
    let expected = |title, from| [title, "about 1,200 steps (25 min)", from];
    let span = "1,100 to 1,400 (P10 to P90), from step 20";
    check(&of.answers(&ALIVE).time, expected("Out of memory in", span));
    let full = found(Growth { steps_to_oom: Some(0), ..leak(2) });
    let expected_full = ["Out of memory in", "no time: memory is full", "from step 20"];
    check(&full.answers(&ALIVE).time, expected_full);
    check(&of.answers(&NOTHING).time, expected("Out of memory in", span));
    let of_host = Growth { layer: Layer::Host, forecast: None, ..growth };
    let of_host = Incident { growth: of_host, clock: Clock::Turns, ..of };
    let expected = ["Out of host memory in", "about 1,200 turns (25 min)", "from turn 20"];
    check(&of_host.answers(&ALIVE).time, expected);
}

#[test]
fn without_a_forecast_the_time_says_why() {
    let check = |of: &Incident, context: &Context<'_>, expected: [&str; 3]| {
        check(&of.answers(context).time, expected);
    };
    let full = |why| ["Out of memory", "time not known", why];
    let none = of_layer(Layer::Allocated);
    check(&none, &ALIVE, full("no forecast for this growth"));
    let unsized_rank = Some(RankContext { is_sized: false, ..RANK });
    let unsized_rank = Context { rank: unsized_rank, ..ALIVE };
    check(&none, &unsized_rank, full("the size of the device is not known"));
    let host = ["Out of host memory", "time not known", "no forecast for this growth"];
    check(&of_layer(Layer::Pinned), &unsized_rank, host);
    let mut pauses = none.clone();
    pauses.growth.paused_since_step = Some(15);
    check(&pauses, &ALIVE, full("the growth pauses"));
    check(&none, &ENDED, ["How long", "the rank has ended", "after step 812"]);
    check(&closed(none), &ENDED, ["How long", "over", "judged until step 20"]);
    let stays = [
        "Out of memory",
        "not from this imbalance: it does not grow",
        "the distance to the peers stays",
    ];
    check(&of_layer(Layer::Spread), &ALIVE, stays);
    let recurs = ["How long", "nothing grows", "it recurs from step to step"];
    check(&of_layer(Layer::Retries), &ALIVE, recurs);
    check(&of_layer(Layer::Churn), &NOTHING, recurs);
    let failed = of_layer(Layer::Process);
    let happened = |detail| ["How long", "it has happened", detail];
    check(&failed, &NOTHING, happened("after step 20"));
    check(&failed, &ENDED, happened("the rank ended after step 812"));
    check(&failed, &ALIVE, happened("the rank goes on, now at step 812"));
}

#[test]
fn a_standstill_has_the_time_of_its_last_step() {
    let time = |of: &Incident, context: &Context<'_>, since_wall_ns, expected: [&str; 3]| {
        let answer = of.answers(context).time;
        assert_eq!(answer.since_wall_ns, since_wall_ns);
        check(&answer, expected);
    };
    let of = of_layer(Layer::Progress);
    time(&of, &ALIVE, Some(81), ["Stands still", "last step", "after step 812"]);
    time(&of, &NOTHING, Some(70), ["Stands still", "since", "after step 20"]);
    // A rank that began again has no step with a time.
    let untimed = Context { rank: Some(RankContext { step_wall_ns: 0, ..RANK }), ..ALIVE };
    time(&of, &untimed, Some(70), ["Stands still", "since", "after step 812"]);
    time(&of, &ENDED, None, ["How long", "the rank has ended", "after step 812"]);
    time(&closed(of), &ALIVE, None, ["How long", "over", "judged until step 20"]);
}

#[test]
fn a_line_says_what_it_has_to_do_with_the_incident() {
    let line = |of: &Incident, expected: &str| {
        check(&of.answers(&ALIVE).line, ["Which line", "train.py:36", expected]);
    };
    let leak = known(Class::Leak);
    line(&leak, "explains 98 % of the growth (at step 149)");
    let mut of = leak.clone();
    of.growth.layer = Layer::Spread;
    line(&of, "explains 98 % of the difference of the peaks (at step 149)");
    of.growth.layer = Layer::Workers;
    line(&of, "what its workers ran most often");
    let mut of = leak;
    of.diagnosis.as_mut().expect("known").explained_ppm = 0;
    line(&of, "");
    line(&known(Class::Died), "the line of the growth before it");
    let mut of = known(Class::OutOfMemory);
    line(&of, "the line of the growth before it");
    let diagnosis = of.diagnosis.as_mut().expect("known");
    diagnosis.stack = diagnosis.culprit.iter().cloned().collect();
    line(&of, "on the stack of the request that failed");
}

#[test]
fn without_a_line_the_answer_says_why() {
    let line = |of: &Incident, context: &Context<'_>, text: &str, why: &str| {
        check(&of.answers(context).line, ["Which line", text, why]);
    };
    for class in Class::ALL {
        let answer = lineless(*class).answers(&ALIVE).line;
        assert!(!answer.text.is_empty() && !answer.detail.is_empty(), "{class:?}: {answer:?}");
    }
    line(&lineless(Class::Died), &ALIVE, "none", "the end of a process has no line");
    let none = "the request that failed has no stack";
    line(&lineless(Class::OutOfMemory), &ALIVE, "not known", none);
    let unexplained = "the capture does not explain it";
    line(&lineless(Class::Leak), &ALIVE, "not known", unexplained);
    let new = found(leak(2));
    line(&new, &NOTHING, "not known yet", "there is no capture of it yet");
    let late = "it was over before there was a capture";
    line(&closed(new), &NOTHING, "not known", late);
    let limitations = ["no stacks".to_string()];
    let rank = Some(RankContext { limitations: &limitations, ..RANK });
    let limited = Context { rank, ..ALIVE };
    let why = "too little was recorded; no stacks";
    line(&lineless(Class::Telemetry), &limited, "not known", why);
    line(&lineless(Class::Leak), &limited, "not known", unexplained);
}

#[test]
fn the_kind_says_how_sure_it_is_and_how_urgent() {
    let kind = |of: &Incident, context: &Context<'_>, text: &str, detail: &str| {
        check(&of.answers(context).kind, ["Leak or just big", text, detail]);
    };
    let leak = known(Class::Leak);
    let (sure, kept) = ("90 % sure: a leak", "memory is kept that should be freed");
    kind(&leak, &ALIVE, sure, &format!("{kept}; it pages"));
    let silenced = Context { is_silenced: true, ..ALIVE };
    let said = format!("{kept}; it pages, but it is silenced");
    kind(&leak, &silenced, sure, &said);
    kind(&closed(leak.clone()), &silenced, sure, kept);
    let ticket = Incident { urgency: Urgency::Ticket, ..leak.clone() };
    kind(&ticket, &ALIVE, sure, &format!("{kept}; a ticket: for the next working day"));
    let notice = Incident { urgency: Urgency::Notice, ..known(Class::Unknown) };
    let why = "the capture does not explain it; a notice: it does not page";
    kind(&notice, &ALIVE, "no diagnosis yet", why);
    let mut early = notice;
    early.growth.is_sure = false;
    let why = "the capture does not explain it; a notice: it is not certain yet that the growth \
               goes on";
    kind(&early, &ALIVE, "no diagnosis yet", why);
    let mut stands = Incident { urgency: Urgency::Notice, ..of_layer(Layer::Progress) };
    stands.growth.scope = Scope::AllRanks;
    let detail = stands.answers(&ALIVE).kind.detail;
    assert!(detail.ends_with("a notice: it does not page yet"), "{detail}");
    let late = "it was over before there was a capture";
    kind(&closed(of_layer(Layer::Host)), &ALIVE, "no diagnosis", late);
    for class in Class::ALL.iter().filter(|class| **class != Class::Unknown) {
        let answer = closed(known(*class)).answers(&ALIVE).kind;
        let is_certain = matches!(class, Class::Died | Class::OutOfMemory | Class::Telemetry);
        assert_eq!(answer.text.starts_with("90 % sure: "), !is_certain, "{answer:?}");
        assert!(!answer.text.is_empty() && !answer.detail.is_empty(), "{answer:?}");
    }
}

/// What could not be compared is not what the capture does not explain, of any layer.
#[test]
fn a_capture_that_could_not_be_compared_is_said_to_be_that() {
    for layer in Layer::VARIANTS {
        let capture_id = Some("cap-1".to_string());
        let not_compared = Some(NotCompared::UnknownRank { rank: 2 });
        let of = Incident { capture_id, not_compared, ..of_layer(*layer) };
        for of in [closed(of.clone()), of] {
            let Answers { line, kind, .. } = of.answers(&ALIVE);
            for answer in [line, kind] {
                let is_said = answer.detail.starts_with("the capture could not be compared: ");
                assert!(is_said, "{layer:?}: {answer:?}");
            }
        }
    }
}

#[test]
fn a_failed_request_names_what_led_to_it() {
    let kind = |related: Option<&Incident>, text: &str, detail: &str| {
        let of = closed(known(Class::OutOfMemory));
        let answer = of.answers(&Context { related, ..ALIVE }).kind;
        check(&answer, ["Leak or just big", text, detail]);
    };
    let ended = "reported before as inc-1; the job then ran out of memory";
    kind(Some(&known(Class::Leak)), "90 % sure: a leak", ended);
    kind(Some(&known(Class::Pressure)), "90 % sure: pressure", ended);
    kind(Some(&found(leak(2))), "out of memory", "it ended the growth that inc-1 reports");
    let mut stood = of_layer(Layer::Progress);
    stood.growth.scope = Scope::AllRanks;
    kind(Some(&stood), "out of memory", "it ended the standstill that inc-1 reports");
    kind(None, "out of memory", "no growth was reported before it");
    let mut of = closed(known(Class::OutOfMemory));
    of.related = Some("inc-0".to_string());
    let said = of.answers(&ALIVE).kind.detail;
    assert_eq!(said, "it ended inc-0, which is not known here any more");
}

#[test]
fn figures_of_a_restart_and_a_remedy_have_their_step() {
    let mut of = known(Class::Leak);
    let diagnosis = of.diagnosis.as_mut().expect("known");
    diagnosis.advice = "free it each step".to_string();
    diagnosis.remedy.saves_bytes = Some(12 * MIB);
    diagnosis.remedy.is_guess = true;
    diagnosis.restart = Restart {
        answer: RestartAnswer::GivesBack,
        gives_back_bytes: Some(12 * MIB),
        lasts_steps: Some(12),
        ends_after_steps: None,
    };
    // All of a leak is kept: its bytes are those of the detector, and newer than the capture.
    (of.growth.last_step, of.growth.grown_bytes) = (812, 300 * MIB);
    let gives = "gives 300 MiB back (at step 812); as much is in use again after about 300 steps, \
                 and memory is full after about 10,000 steps";
    check(&of.answers(&ALIVE).restart, ["A restart helps", "yes", gives]);
    let saves = "saves 294 MiB (at step 812); a guess: the cause is not proven";
    check(&of.answers(&ALIVE).remedy, ["Try first", "free it each step", saves]);
    // A failure has no bytes that grow: they are as the capture showed them.
    let onset_step = of.growth.last_step;
    of.growth = Growth { layer: Layer::Process, onset_step, steps_to_oom: None, ..of.growth };
    let gives = "gives 12 MiB back (at step 149); as much is in use again after about 12 steps";
    check(&of.answers(&ALIVE).restart, ["A restart helps", "yes", gives]);
    let gives = "gives 12 MiB back; as much is in use again after about 12 turns";
    of.clock = Clock::Turns;
    check(&of.answers(&NOTHING).restart, ["A restart helps", "yes", gives]);
    let saves = "saves 12 MiB; a guess: the cause is not proven";
    check(&of.answers(&NOTHING).remedy, ["Try first", "free it each turn", saves]);
}

#[test]
fn a_restart_that_does_not_help_says_why() {
    let check = |answer: RestartAnswer, text: &str, why: &str| {
        let mut of = known(Class::Pressure);
        of.diagnosis.as_mut().expect("known").restart = Restart { answer, ..Restart::default() };
        check(&of.answers(&ALIVE).restart, ["A restart helps", text, why]);
    };
    check(RestartAnswer::NeededAgain, "no", "the job needs this much again");
    check(RestartAnswer::OtherProcesses, "no", "other processes hold the memory");
    let waiting = "ends the waiting; whether the rank falls behind again is not known";
    check(RestartAnswer::EndsWaiting, "not known", waiting);
    check(RestartAnswer::Unknown, "not known", "the cause is not known");
}

#[test]
fn a_failure_without_a_cause_says_where_to_look() {
    let check = |kind: FailureKind, exit_status: Option<i32>, why: &str| {
        let (rank, device, step, wall_ns, ranks) = (2, 0, 20, 70, 4);
        let failure = Failure { rank, device, step, wall_ns, ranks, kind, exit_status };
        let mut of = Incident { failure: Some(failure), ..known(Class::Died) };
        of.diagnosis.as_mut().expect("known").restart = Restart::default();
        check(&of.answers(&ALIVE).restart, ["A restart helps", "not known", why]);
    };
    let kill = "the cause of the end of the rank is not known here: look for the OOM killer in the \
                host's log";
    check(FailureKind::Died(End::Killed), None, kill);
    check(FailureKind::Died(End::Killed), Some(-9), kill);
    let output = "the cause is not known: look at the output of the rank";
    check(FailureKind::Died(End::Killed), Some(-11), output);
    check(FailureKind::Died(End::Failed), Some(1), output);
    let host = "what filled the memory of the host is not known";
    check(FailureKind::Died(End::OomKilled), Some(-9), host);
}

#[test]
fn before_a_diagnosis_nothing_is_advised() {
    let of = found(leak(2));
    let why = "there is no capture of it yet";
    check(&of.answers(&ALIVE).restart, ["A restart helps", "not known", why]);
    let later = "not known yet: it comes with the diagnosis";
    check(&of.answers(&ALIVE).remedy, ["Try first", later, ""]);
    check(&closed(of).answers(&ALIVE).remedy, ["Try first", "not known", ""]);
}

#[test]
fn growth_has_the_unit_of_its_layer_and_its_step() {
    let check = |layer: Layer, rate: u64, grown: u64, expected: &[(&str, &str)]| {
        let growth = Growth { layer, bytes_per_step: rate, grown_bytes: grown, ..leak(2) };
        let facts = found(growth).answers(&ALIVE).growth;
        let found: Vec<_> = facts.iter().map(|of| (&*of.title, &*of.text)).collect();
        assert_eq!(found, expected);
        assert!(facts.iter().all(|of| of.detail == "at step 20"), "{facts:?}");
    };
    check(Layer::Allocated, 2, 64, &[("growth", "+2 B a step"), ("grown", "64 B")]);
    let tensors = [("growth", "+1 tensor a step"), ("grown", "48 tensors")];
    check(Layer::Blocks, 1, 48, &tensors);
    check(Layer::Churn, 0, 48, &[("recurs", "in 48 of the last 64 steps")]);
    check(Layer::Spread, 0, 64, &[("above its peers", "about 64 B")]);
    check(Layer::Progress, 0, 1, &[("behind its peers", "1 step")]);
    check(Layer::Progress, 0, 0, &[]);
    check(Layer::Process, 0, 0, &[]);
    let growth = Growth { paused_since_step: Some(15), ..leak(2) };
    let facts = found(growth).answers(&ALIVE).growth;
    let texts: Vec<_> = facts.iter().map(|of| &*of.text).collect();
    assert_eq!(texts, ["none since step 15", "16 MiB"]);
}

#[test]
fn evidence_of_a_failure_is_what_was_seen() {
    let title = |layer| of_layer(layer).answers(&NOTHING).evidence_title;
    assert_eq!(title(Layer::Process), "What was seen");
    assert_eq!(title(Layer::Allocated), "Evidence for it");
}
