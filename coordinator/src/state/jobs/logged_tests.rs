//! Tests of a node's effects: lines of the log, and requests to announce everything again.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

use memtape_core::limits::{
    JOBS_RUNNING_PER_NODE_MAX, REFUSALS_LOGGED_AT_ONCE_MAX, REFUSALS_LOGGED_PER_MINUTE_MAX,
};
use memtape_proto::readings::{RefusedTapes, SpoolReport};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};

use super::*;
use crate::state::jobs::agents::AgentRefused;
use crate::state::jobs::ownership::tests::owned;
use crate::state::jobs::tests::limits;
use crate::state::messages::{Hello, RankReport, Report};

const SECOND_NS: u64 = 1_000_000_000;

/// Counts the lines of this thread.
#[derive(Clone, Default)]
struct Lines(Arc<AtomicU64>);

impl Subscriber for Lines {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, _: &Event<'_>) {
        self.0.fetch_add(1, SeqCst);
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

fn at(seconds: u64) -> Context {
    Context::new(Now { mono_ns: seconds * SECOND_NS, ..Now::default() })
}

/// Number of lost items.
fn lost(mut context: Context) -> u64 {
    let effects = std::iter::from_fn(|| context.pop());
    effects.map(|effect| if let Effect::Lose(_, count) = effect { count } else { 0 }).sum()
}

#[test]
fn a_node_causes_a_bounded_number_of_log_lines() {
    type Flood = fn(&mut Jobs, &mut Context, &str, u64);
    let floods: [(Flood, u64); 4] = [
        (|jobs, context, node, _| jobs.rank_up(context, node, owned("t", "job", 0, 1), None), 1),
        (|jobs, context, node, _| jobs.attach(context.now, hello(node)), 0),
        (
            |jobs, context, node, number| {
                let spool = SpoolReport { facts_dropped: number, ..SpoolReport::default() };
                jobs.report(context, node, Report { spool, ..Report::default() }, None);
            },
            1,
        ),
        (
            |jobs, context, node, number| {
                let refused = RefusedTapes { copies: number, ..RefusedTapes::default() };
                jobs.report(context, node, Report { refused, ..Report::default() }, None);
            },
            1,
        ),
    ];
    let per_minute = REFUSALS_LOGGED_PER_MINUTE_MAX + REFUSALS_LOGGED_AT_ONCE_MAX;
    for (index, (flood, lost_each)) in floods.into_iter().enumerate() {
        let (mut jobs, lines) = (Jobs::new(limits()), Lines::default());
        jobs.announce(Now::default(), "node-a", owned("t", "job", 0, 1)).unwrap();
        jobs.attach(Now::default(), hello("stolen"));
        jobs.attach(Now::default(), hello("node-b"));
        let count = || lines.0.load(SeqCst);
        tracing::subscriber::with_default(lines.clone(), || {
            let mut all_lost = 0;
            for number in 1..=600 {
                let mut context = at(number / 10);
                flood(&mut jobs, &mut context, "stolen", number);
                all_lost += lost(context);
            }
            assert!((1..=per_minute).contains(&count()), "{index}: {} lines", count());
            assert_eq!(all_lost, 600 * lost_each, "{index}: all are counted");
            // Those of another node are there.
            let before = count();
            flood(&mut jobs, &mut at(60), "node-b", 1);
            assert_eq!(count(), before + 1, "{index}");
        });
    }
}

fn hello(node: &str) -> Hello {
    Hello { node: node.to_string(), ..Hello::default() }
}

/// A user's tapes beyond the bound break the stream of the node only rarely.
#[test]
fn a_refused_tape_is_requested_rarely() {
    let mut jobs = Jobs::new(limits());
    jobs.attach(Now::default(), hello("n"));
    let up = |number: u32| owned(&format!("f{number}"), &format!("flood-{number}"), 0, 666);
    let most = JOBS_RUNNING_PER_NODE_MAX as u32;
    let mut context = at(0);
    (0..=most).for_each(|number| jobs.rank_up(&mut context, "n", up(number), None));
    assert_eq!(lost(context), 1, "one has no room");
    let mut asked = Vec::new();
    for seconds in 1..1_300 {
        let mut context = at(seconds);
        // In turns with reports of tapes that are known.
        let number = if u64::is_multiple_of(seconds, 3) { 0 } else { most };
        let tape_id = up(number).tape_id;
        let ranks = vec![RankReport { tape_id, ..RankReport::default() }];
        jobs.report(&mut context, "n", Report { ranks, ..Report::default() }, None);
        let effects: Vec<Effect> = std::iter::from_fn(|| context.pop()).collect();
        if effects.iter().any(|effect| matches!(effect, Effect::AskToComeAgain { .. })) {
            asked.push(seconds);
            jobs.rank_up(&mut at(seconds), "n", up(most), None);
        }
    }
    assert!(asked.len() == 2 && asked[0] >= 600, "{asked:?}");
}

#[test]
fn a_node_opens_streams_at_a_rate() {
    let mut jobs = Jobs::new(limits());
    let mut admit = |seconds, node| jobs.admit(at(seconds).now, &hello(node));
    let admitted = (0..100).filter(|_| admit(1, "stolen").is_ok()).count();
    assert_eq!(admitted, 10);
    assert_eq!(admit(1, "stolen"), Err(AgentRefused::TooOften("stolen".to_string())));
    assert_eq!(admit(1, "node-b"), Ok(()));
    assert_eq!((admit(2, "stolen").is_ok(), admit(2, "stolen").is_ok()), (true, false));
}

/// A new stream costs as much as its node has ranks.
#[test]
fn a_new_stream_touches_the_attempts_of_its_node() {
    let mut jobs = Jobs::new(limits());
    for number in 0..100 {
        let up = owned(&format!("t{number}"), &format!("job-{number}"), 0, 1);
        let node = if number < 2 { "node-a" } else { "node-b" };
        jobs.announce(Now::default(), node, up).unwrap();
    }
    let touched = |jobs: &mut Jobs| std::iter::from_fn(|| jobs.take_touched()).count();
    jobs.attach(Now::default(), hello("node-a"));
    jobs.node_lost(Now::default(), "node-a");
    assert_eq!(touched(&mut jobs), 2);
    jobs.attach(Now::default(), hello("node-a"));
    jobs.report(&mut at(1), "node-a", Report::default(), None);
    assert_eq!(touched(&mut jobs), 2, "they are gone");
    jobs.attach(Now::default(), hello("node-a"));
    jobs.report(&mut at(2), "node-a", Report::default(), None);
    assert_eq!(touched(&mut jobs), 0);
}
