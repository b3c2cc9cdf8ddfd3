//! The faults of rounds: how each begins and ends.

use std::time::Duration;

use fastrand::Rng;
use memtape_bucket::{Fault, Rule, Server};
use rustix::process::Signal;
use tokio::time::sleep;

use super::member::Member;
use super::relay::Relays;

/// What goes wrong in a round.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd, clap::ValueEnum)]
pub(super) enum Kind {
    /// `kill -9` of the owner.
    Kill,
    /// SIGSTOP of the owner, and SIGCONT when another one has taken over.
    Stop,
    /// The bucket answers the owner no more.
    Partition,
    /// The owner's hint is not renewed, and nothing else is wrong: both believe that they own.
    Two,
    /// No byte passes between agents and coordinators.
    Agents,
    /// The bucket answers 503, or is slow, to all.
    Busy,
    /// The bucket carries requests out, and their answers are lost.
    Lost,
}

/// A fault with what is random about it.
#[derive(Clone, Debug)]
pub(super) struct Faulty {
    pub(super) kind: Kind,
    /// Time before it begins.
    pub(super) before: Duration,
    /// Time that it lasts: of a takeover after it.
    pub(super) lasts: Duration,
    rules: Vec<Rule>,
}

impl Kind {
    /// As it is named in options and figures.
    pub(super) fn name(self) -> String {
        format!("{self:?}").to_lowercase()
    }

    /// Does another coordinator take over?
    pub(super) fn is_of_owner(self) -> bool {
        match self {
            Self::Kill | Self::Stop | Self::Partition | Self::Two => true,
            Self::Agents | Self::Busy | Self::Lost => false,
        }
    }
}

impl Faulty {
    /// A fault of an owner with this access key.
    pub(super) fn new(kind: Kind, owner: &'static str, rng: &mut Rng) -> Self {
        let seconds = |rng: &mut Rng, from: u64, to: u64| {
            Duration::from_millis(rng.u64(from * 1000..=to * 1000))
        };
        let before = seconds(rng, 1, 4);
        let (lasts, rules) = match kind {
            Kind::Kill => (Duration::ZERO, vec![]),
            Kind::Stop => (seconds(rng, 0, 10), vec![]),
            Kind::Partition => (seconds(rng, 0, 10), vec![Rule::of(owner, Fault::Silent)]),
            Kind::Two => (
                seconds(rng, 0, 5),
                vec![Rule { path: "owners", ..Rule::of(owner, Fault::Silent) }],
            ),
            Kind::Agents => (seconds(rng, 3, 30), vec![]),
            Kind::Busy => {
                let percent = [30, 70, 100][rng.usize(..3)];
                let fault = match rng.bool() {
                    true => Fault::Unavailable,
                    false => Fault::Slow(Duration::from_millis(rng.u64(300..2500))),
                };
                (seconds(rng, 5, 25), vec![Rule { percent, ..Rule::of("", fault) }])
            }
            Kind::Lost => {
                let percent = rng.u8(20..=60);
                (seconds(rng, 5, 20), vec![Rule { percent, ..Rule::of("", Fault::AnswerLost) }])
            }
        };
        Self { kind, before, lasts, rules }
    }

    /// Is the bucket away for all?
    pub(super) fn is_bucket_away(&self) -> bool {
        let is_all = |rule: &Rule| {
            rule.client.is_empty() && rule.percent == 100 && rule.fault == Fault::Unavailable
        };
        self.rules.iter().any(is_all)
    }

    /// In words.
    pub(super) fn sentence(&self) -> String {
        let rules: Vec<String> = self
            .rules
            .iter()
            .map(|rule| format!(", {} % {:?} {}", rule.percent, rule.fault, rule.path))
            .collect();
        format!("{:?} for {:.1} s{}", self.kind, self.lasts.as_secs_f64(), rules.concat())
    }

    /// Begins.
    pub(super) fn begin(
        &self,
        owner: &mut Member,
        bucket: &Bucket,
        relays: &Relays,
    ) -> anyhow::Result<()> {
        match self.kind {
            Kind::Kill => owner.kill(),
            Kind::Stop => owner.signal(Signal::STOP)?,
            Kind::Agents => relays.set_cut(true),
            Kind::Partition | Kind::Two | Kind::Busy | Kind::Lost => bucket.set(&self.rules),
        }
        Ok(())
    }

    /// Lasts, and ends.
    pub(super) async fn end(
        &self,
        owner: &Member,
        bucket: &Bucket,
        relays: &Relays,
    ) -> anyhow::Result<()> {
        sleep(self.lasts).await;
        match self.kind {
            Kind::Kill => {}
            Kind::Stop => owner.signal(Signal::CONT)?,
            Kind::Agents => relays.set_cut(false),
            Kind::Partition | Kind::Two | Kind::Busy | Kind::Lost => bucket.set(&[]),
        }
        Ok(())
    }
}

/// The bucket, which takes some time for each request.
#[derive(Debug)]
pub(super) struct Bucket {
    pub(super) server: Server,
    pub(super) latency: Duration,
}

impl Bucket {
    /// Sets rules before the usual time of a request.
    pub(super) fn set(&self, rules: &[Rule]) {
        self.server.clear_faults();
        rules.iter().for_each(|rule| self.server.add_rule(rule.clone()));
        self.server.add_rule(Rule::of("", Fault::Slow(self.latency)));
    }
}
