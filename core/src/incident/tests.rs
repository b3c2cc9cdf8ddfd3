//! Scenarios and properties of the machine.

mod answers;
mod causes;
mod failures;
mod notices;
mod standstills;
mod threads;
mod visits;

use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;

use proptest::prelude::*;

use super::machine::{BACK_NS, CONFIRM_STEPS, RETRY_NS, RISES_MAX};
use super::tracked::Need;
use super::*;
use crate::capture::{Reason, Refusal};
use crate::detector::{Finding, Growth, GrowthKey, Layer, RankState, RankView, Scope};
use crate::diagnosis::{Class, Diagnosis, Fate, diagnose};
use crate::identity::owner::{Holder, Owner};
use crate::identity::planned_end::PlannedEnd;
use crate::limits::INCIDENTS_OPEN_MAX;
use crate::paging::Urgency;
use crate::snapshot::{Frame, RankSnapshot};
use crate::tape::layout::Clock;

const SECOND: u64 = 1_000_000_000;

struct Job {
    serial: u32,
    has_ended: bool,
    here_since_ns: Option<u64>,
    last_step: u64,
    dead: Option<u32>,
    newest: Option<Growth>,
    holder: Holder,
    /// Its even ranks are on one node, and its odd ones on another.
    is_on_two_nodes: bool,
    clock: Clock,
    fates: Vec<Fate>,
    planned_end: PlannedEnd,
}

impl Job {
    fn new(serial: u32) -> Self {
        Self {
            serial,
            has_ended: false,
            here_since_ns: Some(0),
            last_step: 0,
            dead: None,
            newest: None,
            holder: Holder::default(),
            is_on_two_nodes: false,
            clock: Clock::Steps,
            fates: Vec::new(),
            planned_end: PlannedEnd::default(),
        }
    }

    /// A job of an owner whose first rank this node announced.
    fn held(serial: u32, node: &str, uid: u32) -> Self {
        let owner = Owner { uid, ..Owner::default() };
        Self { holder: Holder { node: node.to_string(), owner }, ..Self::new(serial) }
    }
}

impl Attempt for Job {
    fn serial(&self) -> u32 {
        self.serial
    }

    fn job(&self) -> &str {
        "job"
    }

    fn number(&self) -> u32 {
        0
    }

    fn holder(&self, rank: u32) -> Holder {
        match self.is_on_two_nodes {
            true => Holder { node: (rank % 2).to_string(), ..self.holder.clone() },
            false => self.holder.clone(),
        }
    }

    fn fates(&self) -> Vec<Fate> {
        self.fates.clone()
    }

    fn has_ended(&self) -> bool {
        self.has_ended
    }

    fn rank_has_ended(&self, rank: u32) -> bool {
        self.has_ended || self.dead == Some(rank)
    }

    fn clock(&self, _: u32) -> Clock {
        self.clock
    }

    fn step_time_ns(&self, _: u32) -> Option<u64> {
        Some(SECOND)
    }

    fn planned_end(&self, _: u32) -> PlannedEnd {
        self.planned_end
    }

    fn newest(&self, key: &GrowthKey) -> Option<Growth> {
        self.newest.filter(|growth| growth.key().names(key))
    }

    fn rank(&self, _rank: u32) -> RankView {
        let state = if self.newest.is_some() { RankState::Growing } else { RankState::Healthy };
        RankView { state, last_step: self.last_step }
    }

    fn here_since_ns(&self, _rank: u32) -> Option<u64> {
        self.here_since_ns
    }
}

fn growth(rank: u32, layer: Layer, scope: Scope, returns: u32) -> Growth {
    Growth {
        rank,
        scope,
        onset_step: 10,
        detected_step: 20,
        last_step: 20,
        bytes_per_step: 1 << 20,
        grown_bytes: 1 << 24,
        layer,
        steps_to_oom: Some(10_000),
        peers: 3,
        returns,
        ..Growth::default()
    }
}

fn leak(rank: u32) -> Growth {
    growth(rank, Layer::Allocated, Scope::OneRank, 0)
}

/// A diagnosis that pages, unless its class is [`Class::Unknown`]; leaks have one line each.
fn diagnosis(class: Class, line: u32) -> Box<Diagnosis> {
    let unknown = diagnose(&leak(0), &RankSnapshot::default(), &[]);
    let is_known = class != Class::Unknown;
    let culprit = Frame { file: "/app/train.py".to_string(), line, ..Frame::default() };
    Box::new(Diagnosis {
        class,
        culprit: is_known.then_some(culprit),
        confidence_ppm: if is_known { 900_000 } else { 0 },
        stands_out: true,
        age_steps: 1_000,
        ends_soon: false,
        ..unknown
    })
}

fn is_page(effect: &Effect) -> bool {
    matches!(effect, Effect::Raised { urgency: Urgency::Page, .. })
}

/// Carries out effects: every request is granted, captures are named after incidents.
#[derive(Default)]
struct Shell {
    incidents: Incidents,
    names: u32,
    now_ns: u64,
    log: Vec<Effect>,
}

impl Shell {
    fn now(&self) -> Now {
        Now { mono_ns: self.now_ns, wall_ns: self.now_ns as i64 }
    }

    fn found(&mut self, job: &Job, finding: Finding) {
        let (now, names) = (self.now(), &mut self.names);
        self.incidents.found(now, job, finding, || {
            *names += 1;
            format!("inc-{names:04}")
        });
        self.carry_out();
    }

    fn review(&mut self, job: &Job) {
        let (now, names) = (self.now(), &mut self.names);
        self.incidents.review(now, job, || {
            *names += 1;
            format!("inc-{names:04}")
        });
        self.carry_out();
    }

    fn carry_out(&mut self) {
        let now = self.now();
        while let Some(effect) = self.incidents.poll() {
            if let Effect::RequestCapture { id, .. } = &effect {
                self.incidents.capture_answered(now, id, Ok(format!("cap-{id}")));
            }
            self.log.push(effect);
        }
    }

    fn diagnose(&mut self, id: &str, found: Box<Diagnosis>) {
        let capture = format!("cap-{id}");
        self.incidents.capture_closed(self.incident(id).serial, &capture, &Reason::Manual);
        self.carry_out();
        let is_asked =
            |effect: &Effect| matches!(effect, Effect::Diagnose { id: of, .. } if of == id);
        assert!(self.log.iter().any(is_asked), "{id} does not wait for a capture");
        self.incidents.diagnosed(self.now(), id, &capture, Ok(found));
        self.carry_out();
    }

    fn incident(&self, id: &str) -> &Incident {
        self.incidents.get(id).expect("it is known").incident()
    }

    fn pages(&self) -> usize {
        self.log.iter().filter(|effect| is_page(effect)).count()
    }

    fn requests(&self) -> usize {
        let is_request = |effect: &&Effect| matches!(effect, Effect::RequestCapture { .. });
        self.log.iter().filter(is_request).count()
    }
}

#[test]
fn growth_is_one_incident_from_its_first_finding_to_its_end() {
    let (mut shell, job) = (Shell::default(), Job::new(7));
    shell.found(&job, Finding::Opened(leak(2)));
    let more = Growth { onset_step: 99, grown_bytes: 1 << 25, ..leak(2) };
    shell.found(&job, Finding::Updated(more));
    let incident = shell.incident("inc-0001");
    assert_eq!((incident.growth.onset_step, incident.growth.grown_bytes), (10, 1 << 25));
    assert_eq!(incident.seconds_to_oom, Some(10_000));
    shell.diagnose("inc-0001", diagnosis(Class::Leak, 3));
    assert_eq!((shell.incident("inc-0001").class(), shell.pages()), (Class::Leak, 1));
    // The detector reports growth seldom: the last figures come with its end.
    shell.found(&job, Finding::Closed(Growth { last_step: 50, grown_bytes: 1 << 26, ..more }));
    let incident = shell.incident("inc-0001");
    let closed = incident.closed.expect("it is closed");
    assert_eq!(closed.reason, ClosedReason::GrowthEnded { at_step: 50 });
    assert_eq!(closed.reason.to_string(), "the growth ended at step 50");
    assert_eq!((incident.growth.last_step, incident.growth.grown_bytes), (50, 1 << 26));
    assert_eq!(shell.incidents.len(), 1);
}

#[test]
fn growth_that_returns_is_the_same_incident_and_is_captured_again() {
    let (mut shell, job) = (Shell::default(), Job::new(0));
    shell.found(&job, Finding::Opened(leak(0)));
    shell.diagnose("inc-0001", diagnosis(Class::Leak, 3));
    shell.found(&job, Finding::Closed(leak(0)));
    shell.found(&job, Finding::Opened(growth(0, Layer::Allocated, Scope::OneRank, 1)));
    assert!(shell.incident("inc-0001").is_open());
    shell.now_ns += SECOND;
    shell.incidents.tick(shell.now());
    shell.carry_out();
    shell.diagnose("inc-0001", diagnosis(Class::ReferenceCycles, 3));
    assert_eq!(shell.incident("inc-0001").class(), Class::ReferenceCycles);
}

#[test]
fn growth_that_returns_as_it_was_first_found_is_the_same_incident() {
    let (mut shell, job) = (Shell::default(), Job::new(0));
    let blocks = |returns| growth(5, Layer::Blocks, Scope::Role, returns);
    let bytes = |returns| growth(4, Layer::Allocated, Scope::AllRanks, returns);
    shell.found(&job, Finding::Opened(blocks(0)));
    shell.diagnose("inc-0001", diagnosis(Class::Leak, 3));
    for returns in 0..3 {
        shell.found(&job, Finding::Opened(blocks(returns)));
        assert_eq!(shell.incident("inc-0001").growth.layer, Layer::Blocks);
        shell.found(&job, Finding::Opened(bytes(returns)));
        shell.found(&job, Finding::Closed(blocks(0)));
        let incident = shell.incident("inc-0001");
        assert!(incident.is_open(), "its bytes still grow");
        assert_eq!(incident.growth.layer, Layer::Allocated);
        shell.found(&job, Finding::Closed(bytes(0)));
        assert!(!shell.incident("inc-0001").is_open());
        // The coordinator is started again on what it has stored.
        let stored = shell.incident("inc-0001").clone();
        shell.incidents = Incidents::default();
        shell.incidents.restore(shell.now(), stored, Holder::default(), 200, None);
    }
    assert_eq!((shell.incidents.len(), shell.pages()), (1, 1));
}

#[test]
fn the_same_cause_pages_once_and_the_other_speaks_when_the_first_is_over() {
    let (mut shell, job) = (Shell::default(), Job::new(0));
    for rank in [1, 2] {
        shell.found(&job, Finding::Opened(leak(rank)));
    }
    shell.diagnose("inc-0001", diagnosis(Class::Leak, 3));
    shell.diagnose("inc-0002", diagnosis(Class::Leak, 3));
    let other = shell.incident("inc-0002");
    assert_eq!(other.reported_in.as_deref(), Some("inc-0001"));
    shell.found(&job, Finding::Closed(leak(1)));
    shell.incidents.tick(shell.now());
    shell.carry_out();
    shell.diagnose("inc-0002", diagnosis(Class::Leak, 3));
    assert_eq!((shell.incident("inc-0002").urgency, shell.pages()), (Urgency::Page, 2));
}

#[test]
fn an_incident_that_has_paged_raises_no_ticket_of_its_cause_when_it_returns() {
    let (mut shell, job) = (Shell::default(), Job::new(0));
    shell.found(&job, Finding::Opened(leak(2)));
    shell.diagnose("inc-0001", diagnosis(Class::Leak, 3));
    shell.found(&job, Finding::Closed(leak(2)));
    let shared = growth(0, Layer::Allocated, Scope::AllRanks, 0);
    shell.found(&job, Finding::Opened(Growth { steps_to_oom: Some(60_000), ..shared }));
    shell.diagnose("inc-0002", diagnosis(Class::Leak, 3));
    assert_eq!(shell.incident("inc-0002").urgency, Urgency::Ticket);
    shell.found(&job, Finding::Opened(Growth { returns: 1, ..leak(2) }));
    shell.incidents.tick(shell.now());
    shell.carry_out();
    shell.diagnose("inc-0001", diagnosis(Class::Leak, 3));
    let urgency = |id: &str| shell.incident(id).urgency;
    assert_eq!((urgency("inc-0001"), urgency("inc-0002")), (Urgency::Page, Urgency::Ticket));
    assert_eq!(shell.pages(), 1);
}

#[test]
fn a_closed_incident_pages_only_when_its_attempt_ended() {
    for (ends, expected) in [(true, Urgency::Page), (false, Urgency::Notice)] {
        let (mut shell, job) = (Shell::default(), Job::new(0));
        shell.found(&job, Finding::Opened(leak(0)));
        if ends {
            shell.incidents.attempt_ended(shell.now(), &job);
        } else {
            shell.found(&job, Finding::Closed(leak(0)));
        }
        shell.diagnose("inc-0001", diagnosis(Class::Leak, 3));
        assert_eq!(shell.incident("inc-0001").urgency, expected);
    }
}

#[test]
fn an_attempt_that_goes_on_reopens_its_incidents_until_they_are_confirmed_or_not() {
    let (mut shell, mut job) = (Shell::default(), Job::new(0));
    shell.found(&job, Finding::Opened(leak(0)));
    shell.found(&job, Finding::Opened(leak(1)));
    shell.incidents.attempt_ended(shell.now(), &job);
    shell.incidents.attempt_goes_on(shell.now(), &job);
    assert!(shell.incident("inc-0001").is_open());
    shell.found(&job, Finding::Opened(leak(0)));
    job.last_step = leak(1).last_step + CONFIRM_STEPS + 1;
    shell.review(&job);
    assert!(shell.incident("inc-0001").is_open());
    let closed = shell.incident("inc-0002").closed.expect("it was not found again");
    assert_eq!(closed.reason, ClosedReason::NotFoundAgain);
}

#[test]
fn growth_of_an_ended_attempt_opens_no_incident() {
    let (mut shell, mut job) = (Shell::default(), Job::new(0));
    job.has_ended = true;
    shell.found(&job, Finding::Opened(leak(0)));
    assert!(shell.incidents.is_empty());
}

#[test]
fn a_rank_is_silent_only_when_its_agent_had_time_to_report() {
    let silence = growth(4, Layer::Progress, Scope::OneRank, 0);
    let (mut shell, mut job) = (Shell::default(), Job::new(0));
    shell.now_ns = 100 * SECOND;
    job.here_since_ns = None;
    shell.found(&job, Finding::Opened(silence));
    job.here_since_ns = Some(shell.now_ns);
    shell.review(&job);
    assert!(shell.incidents.is_empty(), "its agent is only just back");
    shell.found(&job, Finding::Closed(silence));
    shell.now_ns += 2 * BACK_NS;
    shell.review(&job);
    assert!(shell.incidents.is_empty(), "it has reported since");
    job.here_since_ns = Some(shell.now_ns);
    shell.found(&job, Finding::Opened(silence));
    shell.now_ns += BACK_NS;
    shell.review(&job);
    assert!(shell.incident("inc-0001").is_open(), "it stays silent");
}

#[test]
fn an_unexplained_incident_is_captured_a_bounded_number_of_times() {
    let (mut shell, job) = (Shell::default(), Job::new(0));
    shell.found(&job, Finding::Opened(leak(0)));
    for grown in 1..=2 * TRIES_MAX {
        if matches!(
            shell.incidents.get("inc-0001").expect("it is known").need,
            Need::Awaited { .. }
        ) {
            shell.diagnose("inc-0001", diagnosis(Class::Unknown, 0));
        }
        shell.now_ns += 10 * SECOND;
        let grown_bytes = u64::from(grown) << 30;
        shell.found(&job, Finding::Updated(Growth { grown_bytes, ..leak(0) }));
        shell.incidents.tick(shell.now());
        shell.carry_out();
    }
    assert_eq!(shell.requests(), TRIES_MAX as usize);
}

#[test]
fn incidents_are_bounded() {
    let mut shell = Shell::default();
    for rank in 0..INCIDENTS_OPEN_MAX as u32 + 3 {
        shell.found(&Job::new(0), Finding::Opened(leak(rank)));
    }
    assert_eq!(shell.incidents.len(), INCIDENTS_OPEN_MAX);
    let lost = shell.log.iter().filter(|effect| **effect == Effect::Lost).count();
    assert_eq!(lost, 3);
}

/// A node that opens as many incidents as the bound, of as many owners, gives way to others.
#[test]
fn the_incidents_of_one_node_take_no_room_of_another() {
    let mut shell = Shell::default();
    for serial in 0..INCIDENTS_OPEN_MAX as u32 + 3 {
        shell.found(&Job::held(serial, "thief", serial), Finding::Opened(leak(0)));
    }
    assert_eq!(shell.incidents.len(), INCIDENTS_OPEN_MAX);
    let of_others =
        |shell: &Shell| shell.incidents.iter().filter(|of| of.incident().serial >= 10_000).count();
    for rank in 0..600 {
        shell.found(&Job::held(10_000, "honest", 1), Finding::Opened(leak(rank)));
    }
    assert_eq!(shell.incidents.len(), INCIDENTS_OPEN_MAX);
    assert_eq!(of_others(&shell), INCIDENTS_OPEN_MAX / 2, "an equal part");
    // The thief gets nothing back.
    for serial in 2_000..3_000 {
        shell.found(&Job::held(serial, "thief", 7), Finding::Opened(leak(0)));
    }
    assert_eq!(of_others(&shell), INCIDENTS_OPEN_MAX / 2);
    // On one node, an owner who has none gets room from the one who has most.
    shell.found(&Job::held(20_000, "honest", 2), Finding::Opened(leak(0)));
    assert_eq!(of_others(&shell), INCIDENTS_OPEN_MAX / 2);
    assert!(shell.incidents.iter().any(|of| of.incident().serial == 20_000));
}

#[derive(Clone, Debug)]
enum Input {
    Open(u32, Growth),
    Update(u32, Growth),
    Close(u32, Growth),
    Ends(u32),
    GoesOn(u32),
    Away(u32, bool),
    Answer(bool),
    Diagnose(Class, u32, bool),
    Wait(u64),
    Forget(u32),
}

fn inputs() -> impl Strategy<Value = Vec<Input>> {
    let layers = [Layer::Allocated, Layer::Blocks, Layer::Progress];
    let scopes = [Scope::OneRank, Scope::Role, Scope::AllRanks];
    // Ends of a page, a ticket and a notice, where ranks share the growth.
    let ends = [Some(10_000), Some(50_000), Some(1_000_000), None];
    let some = (0..3_u32, 0..3_usize, 0..3_usize, 0..2_u32, 0..4_usize).prop_map(
        move |(rank, layer, scope, returns, end)| Growth {
            steps_to_oom: ends[end],
            ..growth(rank, layers[layer], scopes[scope], returns)
        },
    );
    let classes = [Class::Unknown, Class::Leak, Class::ReferenceCycles, Class::Pressure];
    let input = prop_oneof![
        4 => (0..2_u32, some.clone()).prop_map(|(job, growth)| Input::Open(job, growth)),
        3 => (0..2_u32, some.clone()).prop_map(|(job, growth)| Input::Update(job, growth)),
        3 => (0..2_u32, some).prop_map(|(job, growth)| Input::Close(job, growth)),
        1 => (0..2_u32).prop_map(Input::Ends),
        1 => (0..2_u32).prop_map(Input::GoesOn),
        1 => (0..2_u32, any::<bool>()).prop_map(|(job, is_away)| Input::Away(job, is_away)),
        4 => any::<bool>().prop_map(Input::Answer),
        6 => (0..4_usize, 1..3_u32, any::<bool>())
            .prop_map(move |(class, line, fails)| Input::Diagnose(classes[class], line, fails)),
        3 => (0..40_u64).prop_map(|seconds| Input::Wait(seconds * SECOND)),
        1 => (0..2_u32).prop_map(Input::Forget),
    ];
    proptest::collection::vec(input, 1..120)
}

/// A shell in which requests, captures and comparisons may stay unanswered for any time.
struct Model {
    shell: Shell,
    jobs: [Job; 2],
    asked: Vec<String>,
    comparing: Vec<(String, String)>,
    captures: u32,
}

impl Model {
    fn take(&mut self, input: Input) {
        let now = self.shell.now();
        match input {
            Input::Open(job, growth) => self.found(job, Finding::Opened(growth)),
            Input::Update(job, growth) => self.found(job, Finding::Updated(growth)),
            Input::Close(job, growth) => self.found(job, Finding::Closed(growth)),
            Input::Ends(job) => {
                self.jobs[job as usize].has_ended = true;
                self.shell.incidents.attempt_ended(now, &self.jobs[job as usize]);
            }
            Input::GoesOn(job) => {
                self.jobs[job as usize].has_ended = false;
                self.shell.incidents.attempt_goes_on(now, &self.jobs[job as usize]);
            }
            Input::Away(job, is_away) => {
                self.jobs[job as usize].here_since_ns = (!is_away).then_some(now.mono_ns);
            }
            Input::Answer(is_granted) => self.answer(is_granted),
            Input::Diagnose(class, line, fails) => {
                if let Some((id, capture)) = self.comparing.pop() {
                    let failed = NotCompared::UnknownRank { rank: 0 };
                    let result = if fails { Err(failed) } else { Ok(diagnosis(class, line)) };
                    self.shell.incidents.diagnosed(now, &id, &capture, result);
                }
            }
            Input::Wait(ns) => {
                self.shell.now_ns += ns;
                let (now, names) = (self.shell.now(), &mut self.shell.names);
                for job in &self.jobs {
                    self.shell.incidents.review(now, job, || {
                        *names += 1;
                        format!("inc-{names:04}")
                    });
                }
                self.shell.incidents.tick(now);
            }
            Input::Forget(job) => self.shell.incidents.forget_attempt(job),
        }
        self.effects();
        self.invariants();
    }

    fn found(&mut self, job: u32, finding: Finding) {
        let (now, names) = (self.shell.now(), &mut self.shell.names);
        self.shell.incidents.found(now, &self.jobs[job as usize], finding, || {
            *names += 1;
            format!("inc-{names:04}")
        });
    }

    fn answer(&mut self, is_granted: bool) {
        let now = self.shell.now();
        let Some(id) = self.asked.pop() else { return };
        if !is_granted {
            let refusal = Refusal::TooSoon { wait_ns: 5 * SECOND };
            self.shell.incidents.capture_answered(now, &id, Err(refusal));
            return;
        }
        self.captures += 1;
        let capture = format!("cap-{}", self.captures);
        self.shell.incidents.capture_answered(now, &id, Ok(capture.clone()));
        for job in &self.jobs {
            self.shell.incidents.capture_closed(job.serial, &capture, &Reason::Manual);
        }
    }

    fn effects(&mut self) {
        while let Some(effect) = self.shell.incidents.poll() {
            match effect {
                Effect::RequestCapture { id, .. } => self.asked.push(id),
                Effect::Diagnose { id, capture } => self.comparing.push((id, capture)),
                Effect::Raised { id, urgency } => {
                    let incident = self.shell.incident(&id);
                    let reason = incident.closed.map(|closed| closed.reason);
                    assert_eq!(incident.urgency, urgency);
                    assert!(matches!(reason, None | Some(ClosedReason::AttemptEnded)));
                }
                Effect::ConsiderRestart { id } => {
                    assert_eq!(self.shell.incident(&id).objection(), None);
                }
                Effect::Store { .. } | Effect::Forget { .. } | Effect::Lost => {}
            }
        }
    }

    fn invariants(&self) {
        self.shell.incidents.known.check();
        let mut open: BTreeMap<(u32, GrowthKey), &str> = BTreeMap::new();
        for tracked in self.shell.incidents.iter() {
            let incident = tracked.incident();
            assert!(incident.tries <= TRIES_MAX + RISES_MAX, "{incident:?}");
            if let Some(by) = &incident.reported_in
                && incident.is_open()
            {
                let by = self.shell.incident(by);
                assert!(by.is_open() && by.urgency > incident.urgency, "{incident:?} {by:?}");
            }
            if let Need::Awaited { capture, .. } = &tracked.need {
                let is_next = tracked.compare_next.as_ref() == Some(capture);
                let is_compared =
                    is_next || self.comparing.iter().any(|(_, known)| known == capture);
                assert!(is_compared, "{capture} of {incident:?} stays unanswered");
            }
            if incident.is_open() {
                let key = (incident.serial, incident.growth.key());
                let other = open.insert(key, &incident.id);
                assert!(other.is_none(), "{other:?} is about the same as {incident:?}");
            }
        }
    }
}

proptest! {
    #[test]
    fn any_inputs_keep_the_invariants(inputs in inputs()) {
        let mut model = Model {
            shell: Shell::default(),
            jobs: [Job::new(0), Job::new(1)],
            asked: Vec::new(),
            comparing: Vec::new(),
            captures: 0,
        };
        for input in inputs {
            model.take(input);
        }
        // When every request is answered, no incident still needs a capture.
        for _ in 0..64 {
            model.shell.now_ns += RETRY_NS + SECOND;
            model.take(Input::Wait(0));
            while !model.asked.is_empty() {
                model.take(Input::Answer(true));
            }
            while !model.comparing.is_empty() {
                model.take(Input::Diagnose(Class::Pressure, 1, false));
            }
        }
        let needs = model.shell.incidents.iter().filter(|known| known.need != Need::Nothing);
        let needs: Vec<String> = needs.map(|known| known.incident().id.clone()).collect();
        prop_assert!(needs.is_empty(), "{needs:?} still need captures");
    }
}
