//! Compares how far the ranks of a capture are in their collectives, and which ranks wait.
//!
//! A collective ends when all ranks of its group have begun it. A rank that left one out holds up
//! all others: they have enqueued it, perhaps with more behind it, and not completed it. The rank's
//! own newest is an earlier one. Such a rank is desynchronised; it does not leak.
//!
//! The ranks were polled at different times, by clocks that differ. A rank counts as behind only
//! when a poll found it behind [`MARGIN_NS`] after another poll found a peer at the collective that
//! the peers wait in. A rank whose last poll is older may be stopped; nothing else follows from it.
//! Where one rank has completed the furthest collective, no rank waits: some operations (a
//! broadcast, a send) complete on one rank before others have begun them, and PyTorch counts sends
//! and receives of a group in the same number.

use alloc::collections::BTreeMap;
use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;

use crate::snapshot::{CollectiveGroup, Collectives};
use crate::tape::collective::poll_schedule::{UNSETTLED_NS, rest_ns};
use crate::words::{count, duration, ranks};

/// A difference that is younger is none: looks come once a second, and clocks of nodes differ.
pub const MARGIN_NS: u64 = 5_000_000_000;

/// A rank that was last looked at so much longer before its peers than its looks are apart is not
/// being looked at.
pub const SILENT_MARGIN_NS: u64 = 2 * MARGIN_NS;

/// Ranks that a sentence names; of more it gives the number.
const NAMED_MAX: usize = 8;

/// What a capture has of one rank.
#[derive(Clone, Copy, Debug)]
pub struct RankState<'a> {
    /// Global rank.
    pub rank: u32,
    /// Its process was dead.
    pub dead: bool,
    /// What its tape says; or why that is not there, in words.
    pub state: Result<&'a Collectives, &'a str>,
}

crate::tape::names! {
    /// How it stands with a process group.
    #[derive(Default)]
    pub enum Verdict in "snake_case" {
        /// No rank is behind by more than the times of the polls explain.
        #[default]
        InStep,
        /// All known ranks wait in the same collective, and none is known to be behind.
        Waiting,
        /// Ranks wait in a collective that others have not begun.
        Desynchronised,
        /// The numbers differ, and no rank waits.
        Uneven,
    }
}

crate::tape::names! {
    /// Why a rank has not begun what others wait in.
    #[derive(Default)]
    pub enum Lag in "snake_case" {
        /// It was polled there after a peer had begun the collective that the peers wait in.
        Late,
        /// Its process is dead.
        Dead,
        /// It was last polled before its peers, and was behind then.
        #[default]
        Silent,
    }
}

/// A rank that has not begun the collective that its peers wait in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Deserialize, serde::Serialize)]
#[serde(default)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Behind {
    /// The rank.
    pub rank: u32,
    /// Its newest collective; null before its first.
    pub enqueued: Option<u64>,
    /// Why it is behind.
    #[cfg_attr(feature = "schema", schemars(schema_with = "crate::tape::schema::words::<Lag>"))]
    pub why: Lag,
    /// For how long, in nanoseconds; null for a dead rank.
    pub ns: Option<u64>,
}

/// One process group, over all ranks that have it.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Deserialize, serde::Serialize)]
#[serde(default)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct GroupState {
    /// Its key on the tapes.
    #[serde(skip)]
    pub key: u64,
    /// Its name.
    pub name: String,
    /// What it is for.
    pub desc: String,
    /// Number of its ranks; 0 is unknown.
    pub size: u32,
    /// Ranks that are known, in order.
    pub ranks: Vec<u32>,
    /// Those of them whose process is dead, in order.
    #[serde(skip)]
    pub dead: Vec<u32>,
    /// The furthest collective that any rank has enqueued.
    pub furthest: u64,
    /// The first collective that does not end, where the ranks wait; null where no rank is known
    /// to wait.
    pub waits_in: Option<u64>,
    /// Ranks that have enqueued that one, else the furthest, and wait for its end, in order.
    pub waiting: Vec<u32>,
    /// How long the last of them has been waiting at least, in nanoseconds.
    pub waited_ns: u64,
    /// Ranks that have not enqueued it, in order; not those that may have meanwhile.
    pub behind: Vec<Behind>,
    /// How it stands.
    #[cfg_attr(
        feature = "schema",
        schemars(schema_with = "crate::tape::schema::words::<Verdict>")
    )]
    pub verdict: Verdict,
    /// The verdict as a sentence.
    pub sentence: String,
}

/// All process groups of a capture, and what is not known.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Deserialize, serde::Serialize)]
#[serde(default)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Comparison {
    /// One sentence for each group, for what is not known, and for who does not answer.
    pub sentences: Vec<String>,
    /// Groups, those with a finding first.
    pub groups: Vec<GroupState>,
    /// Ranks whose collectives are not known.
    pub unknown: Vec<Unread>,
    /// Ranks whose flight recorder was asked and had not answered, each with the time of that.
    #[serde(skip)]
    pub unanswered: Vec<(u32, i64)>,
    /// Groups of single ranks that are not identified or found no room: they are not compared.
    pub uncompared: u64,
    /// Ranks that wait in a collective of a group that is not identified, in order.
    pub waiting_uncompared: Vec<u32>,
}

/// Why the collectives of some ranks are not known.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Deserialize, serde::Serialize)]
#[serde(default)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Unread {
    /// The reason.
    pub why: String,
    /// The ranks, in order.
    pub ranks: Vec<u32>,
}

/// A group of one rank, with what matters for comparing.
#[derive(Clone, Copy)]
struct Member<'a> {
    rank: u32,
    dead: bool,
    look_ns: i64,
    /// From one look to the next, at most.
    rest_ns: u64,
    group: &'a CollectiveGroup,
}

/// Compares what the ranks say.
pub fn compare(ranks: &[RankState<'_>]) -> Comparison {
    let mut found = Comparison::default();
    let mut unknown: BTreeMap<String, Vec<u32>> = BTreeMap::new();
    let mut groups: BTreeMap<u64, Vec<Member<'_>>> = BTreeMap::new();
    for of in ranks {
        let state = match of.state {
            Ok(state) => state,
            Err(why) => {
                unknown.entry(why.to_string()).or_default().push(of.rank);
                continue;
            }
        };
        if state.look_wall_ns == 0 {
            let why = state.source.why_not().unwrap_or("the flight recorder has not answered yet");
            unknown.entry(why.to_string()).or_default().push(of.rank);
        } else if let Some(why) = state.source.why_not() {
            let why = format!("since its last look: {why}");
            unknown.entry(why).or_default().push(of.rank);
        }
        if state.asked_wall_ns != 0 {
            found.unanswered.push((of.rank, state.asked_wall_ns));
        }
        found.uncompared = found.uncompared.saturating_add(state.groups_lost);
        for group in &state.groups {
            if group.key == 0 {
                found.uncompared = found.uncompared.saturating_add(1);
                let stood_ns = since(state.look_wall_ns, group.since_wall_ns);
                if group.completed < group.enqueued && stood_ns >= MARGIN_NS {
                    found.waiting_uncompared.push(of.rank);
                }
                continue;
            }
            let (rank, dead, look_ns) = (of.rank, of.dead, state.look_wall_ns);
            let rest_ns = rest_ns(state.look_took_ns, UNSETTLED_NS);
            let member = Member { rank, dead, look_ns, rest_ns, group };
            groups.entry(group.key).or_default().push(member);
        }
    }
    found.groups = groups.into_values().filter_map(group_state).collect();
    found.groups.sort_by_key(|group| {
        let rank = match group.verdict {
            Verdict::Desynchronised => 0,
            Verdict::Waiting => 1,
            Verdict::Uneven => 2,
            Verdict::InStep => 3,
        };
        (rank, core::cmp::Reverse(group.size), group.name.clone(), group.key)
    });
    found.unknown = unknown.into_iter().map(|(why, ranks)| Unread { why, ranks }).collect();
    for Unread { ranks, .. } in &mut found.unknown {
        ranks.sort_unstable();
        ranks.dedup();
    }
    found.unanswered.sort_unstable();
    found.waiting_uncompared.sort_unstable();
    found.waiting_uncompared.dedup();
    found.sentences = found.sentences();
    found
}

/// How it stands with one group; `None` before its first collective.
fn group_state(mut members: Vec<Member<'_>>) -> Option<GroupState> {
    members.sort_by_key(|member| member.rank);
    let furthest = members.iter().filter_map(|member| member.group.enqueued).max()?;
    let there = || members.iter().filter(|member| member.group.enqueued == Some(furthest));
    let waits = |member: &&Member<'_>| member.group.completed < member.group.enqueued;
    let all_wait = there().all(|member| waits(&member));
    let stood = there().filter(waits).map(|m| since(m.look_ns, m.group.since_wall_ns));
    let waited_ns = stood.max().unwrap_or(0);
    let is_stuck = all_wait && waited_ns >= MARGIN_NS;
    // A rank that waits has enqueued more: its GPU has the first of them before it. NCCL counts
    // from 1.
    let next = there().map(|member| member.group.completed.map_or(1, |number| number + 1)).max();
    let waits_in = next.map(|next| next.min(furthest)).filter(|_| is_stuck);
    let is_there = |member: &&Member<'_>| {
        // A dead rank completes none of what it has enqueued.
        let first = waits_in.filter(|_| !member.dead).unwrap_or(furthest);
        member.group.enqueued >= Some(first)
    };
    let waiting = members.iter().filter(is_there).filter(waits).map(|member| member.rank).collect();
    // The earliest time at which a rank is known to have been there.
    let reached = members.iter().filter(is_there).map(|member| member.group.since_wall_ns);
    let reached_ns = reached.min()?;
    let newest_ns = members.iter().map(|member| member.look_ns).max()?;
    let lag = |member: &Member<'_>| {
        let late_ns = since(member.look_ns, reached_ns);
        let silent_ns = since(newest_ns, member.look_ns);
        if member.dead {
            Some((Lag::Dead, None))
        } else if late_ns >= MARGIN_NS {
            Some((Lag::Late, Some(late_ns)))
        } else {
            let is_silent = silent_ns >= member.rest_ns.saturating_add(SILENT_MARGIN_NS);
            is_silent.then_some((Lag::Silent, Some(silent_ns)))
        }
    };
    let behind: Vec<Behind> = members
        .iter()
        .filter(|member| !is_there(member))
        .filter_map(|member| {
            let (rank, enqueued) = (member.rank, member.group.enqueued);
            lag(member).map(|(why, ns)| Behind { rank, enqueued, why, ns })
        })
        .collect();
    let holds_up = |behind: &Behind| behind.why != Lag::Silent;
    let verdict = match (is_stuck, behind.iter().any(holds_up)) {
        (true, true) => Verdict::Desynchronised,
        (true, false) => Verdict::Waiting,
        (false, true) if !all_wait => Verdict::Uneven,
        (false, _) => Verdict::InStep,
    };
    let first = members.first()?.group;
    let group = GroupState {
        key: first.key,
        name: first.name.clone(),
        desc: first.desc.clone(),
        size: first.size,
        ranks: members.iter().map(|member| member.rank).collect(),
        dead: members.iter().filter(|member| member.dead).map(|member| member.rank).collect(),
        furthest,
        waits_in,
        waiting,
        waited_ns,
        behind,
        verdict,
        sentence: String::new(),
    };
    Some(GroupState { sentence: group.sentence(), ..group })
}

/// Nanoseconds from one time to a later one; 0 where it is not later.
fn since(later_ns: i64, earlier_ns: i64) -> u64 {
    if later_ns > earlier_ns { later_ns.abs_diff(earlier_ns) } else { 0 }
}

impl Comparison {
    fn sentences(&self) -> Vec<String> {
        let mut lines: Vec<String> =
            self.groups.iter().map(|group| group.sentence.clone()).collect();
        for (rank, _) in &self.unanswered {
            lines.push(format!("rank {rank}: the flight recorder was asked and had not answered"));
        }
        for Unread { why, ranks: of } in &self.unknown {
            lines.push(format!("{}: not known: {why}", ranks(of, of.len())));
        }
        if !self.waiting_uncompared.is_empty() {
            let waits = if self.waiting_uncompared.len() == 1 { "waits" } else { "wait" };
            let who = ranks(&self.waiting_uncompared, self.waiting_uncompared.len());
            lines.push(format!("{who} {waits} in a collective of a group that is not identified"));
        }
        if self.uncompared > 0 {
            let count = self.uncompared;
            let groups = if count == 1 { "group of a rank is" } else { "groups of ranks are" };
            lines.push(format!("{count} {groups} not compared: they are not identified"));
        }
        lines
    }
}

impl GroupState {
    /// What is to be said of it, in one line.
    fn sentence(&self) -> String {
        let group = self.title();
        let known = self.ranks.len();
        let of = known.max(self.size as usize);
        let waiting = self.waiting.len();
        let waits = if waiting == 1 { "waits" } else { "wait" };
        let (furthest, waited) = (count(self.furthest), duration(self.waited_ns));
        let all = if waiting == of { format!("all {of}") } else { format!("{waiting} of {of}") };
        match self.verdict {
            Verdict::InStep => format!(
                "{group}: {} of {of} ranks {}, at collective {furthest}{}{}",
                known - self.dead.len(),
                if self.dead.is_empty() { "are in step" } else { "live" },
                self.dead_ranks(),
                self.and_unknown(),
            ),
            Verdict::Uneven => format!(
                "{group}: the ranks' numbers differ, up to {furthest}, and no rank waits: its \
                 operations do not wait for all ranks{}",
                self.and_unknown(),
            ),
            Verdict::Waiting | Verdict::Desynchronised => {
                let number = self.waits_in.unwrap_or(self.furthest);
                let ahead = match self.furthest > number {
                    true => format!(", with more enqueued up to {furthest}"),
                    false => String::new(),
                };
                format!(
                    "{group}: {all} ranks {waits} in collective {}, for {waited} at the \
                     capture{ahead}{}",
                    count(number),
                    self.reason(),
                )
            }
        }
    }

    /// How far the dead ranks had come, to follow a sentence; empty where none is dead.
    fn dead_ranks(&self) -> String {
        let said = self.dead.iter().take(NAMED_MAX).map(|&rank| {
            let behind = self.behind.iter().find(|behind| behind.rank == rank);
            behind.map_or_else(
                || format!("rank {rank} is dead and had enqueued it"),
                Behind::sentence,
            )
        });
        listed(said.collect(), self.dead.len(), "are dead")
    }

    /// `group 0 (default_pg)`.
    fn title(&self) -> String {
        match self.desc.as_str() {
            "" | "undefined" => format!("group {}", self.name),
            desc => format!("group {} ({desc})", self.name),
        }
    }

    /// Number of ranks of the group that are not known.
    pub(crate) fn unknown(&self) -> usize {
        (self.size as usize).saturating_sub(self.ranks.len())
    }

    /// How many ranks of the group are not known, to follow a sentence; empty where all are.
    fn and_unknown(&self) -> String {
        match self.unknown() {
            0 => String::new(),
            1 => "; 1 rank is not known".to_string(),
            count => format!("; {count} ranks are not known"),
        }
    }

    /// Whom the others wait for, as far as that is known, to follow a sentence.
    fn reason(&self) -> String {
        let unknown = self.and_unknown();
        if !self.behind.is_empty() {
            let said = self.behind.iter().take(NAMED_MAX).map(Behind::sentence);
            return listed(said.collect(), self.behind.len(), "are behind") + &unknown;
        }
        match unknown.as_str() {
            "" => "; no rank is known to be behind".to_string(),
            unknown => format!("{unknown}, and may not have begun it"),
        }
    }
}

impl Behind {
    /// How far it had come, and why not further.
    fn sentence(&self) -> String {
        let rank = self.rank;
        let reached = match (self.why, self.enqueued.map(count)) {
            (Lag::Late, Some(number)) => format!("has enqueued only {number}"),
            (Lag::Late, None) => "has enqueued none".into(),
            // It may have come further since that reading.
            (Lag::Dead | Lag::Silent, Some(number)) => format!("had enqueued {number}"),
            (Lag::Dead | Lag::Silent, None) => "had enqueued none".into(),
        };
        match self.why {
            Lag::Late => format!("rank {rank} {reached}: it is desynchronised, not leaking"),
            Lag::Dead => format!("rank {rank} is dead; in its last reading it {reached}"),
            Lag::Silent => format!(
                "rank {rank} {reached} in its last reading, {} before: it is stopped, or cannot \
                 be read",
                duration(self.ns.unwrap_or(0))
            ),
        }
    }
}

/// What is said of the first [`NAMED_MAX`] of these ranks, and how many more there are, to follow a
/// sentence.
fn listed(mut said: Vec<String>, ranks: usize, what: &str) -> String {
    match ranks.saturating_sub(NAMED_MAX) {
        0 => {}
        more => said.push(format!("{more} more ranks {what}")),
    }
    said.iter().map(|it| format!("; {it}")).collect()
}

#[cfg(test)]
#[path = "collective_tests.rs"]
mod tests;
