//! Answers to the coordinator's captures: the life of each, from the request to its end.
//!
//! A machine without clock, thread or socket: it takes events with their times, and returns
//! [`Work`]. A few tapes are rewound at a time, round-robin over users; a snapshot waits compressed
//! in memory, up to a bound, until the coordinator has stored it or the capture's deadline has
//! passed. A rewind keeps its permit until its snapshot fits within that bound, so at most one
//! snapshot per permit is beyond it. All rewinds share a budget of memory: a rewind begins when the
//! budget has the bytes that its tape declares, and takes no more. A rewind larger than the budget
//! runs alone. Nothing here pauses a rank. Each work ends with one result, even if its capture has
//! ended.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use memtape_core::limits::{ANSWERS_IN_PROGRESS_MAX, CAPTURE_DEADLINE_SECONDS_MAX};
use memtape_core::sharing::{Amounts, Turns};

use crate::capture::rewind::{Rewind, Rewound, no_tape};
use crate::config::Config;
use crate::link::backoff::{self, backoff};
use crate::link::upload::{EncodedSnapshot, UploadError};
use crate::link::wire::{Outgoing, capture_answer};
use crate::node::accounts::Account;
use crate::tapes::census::Count;
use crate::tapes::quota::TapeKey;

/// Deadlines of requests are kept within these; one without any gets the first.
pub(crate) const DEADLINE_DEFAULT: Duration = Duration::from_secs(30);
const DEADLINE_MAX: Duration = Duration::from_secs(CAPTURE_DEADLINE_SECONDS_MAX);

/// Identity of an answer.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct JobKey {
    /// Id of the capture.
    pub(crate) capture_id: String,
    /// About which tape.
    pub(crate) tape_id: String,
}

/// Name of a work; never given twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct WorkId(pub(crate) u64);

/// Work for the caller, who reports when it is done.
#[derive(Debug)]
pub(crate) enum Work {
    /// A tape has to be rewound.
    Rewind(WorkId, Rewind),
    /// A tape has to be counted.
    Count(TapeKey, Count),
    /// A snapshot has to be sent, once, within this time.
    Upload(WorkId, JobKey, EncodedSnapshot, Duration),
}

/// All answers in progress.
#[derive(Debug)]
pub(crate) struct Captures {
    jobs: BTreeMap<JobKey, Job>,
    /// Rewinds for the agent itself, which are not uploaded from here.
    own: BTreeSet<WorkId>,
    /// Queued rewinds, oldest first.
    waiting: Vec<(WorkId, JobKey, Rewind)>,
    /// Users whose tapes were rewound.
    turns: Turns<Account>,
    /// Rewinds that are being made.
    rewinding: BTreeMap<WorkId, Rewinding>,
    /// Finished rewinds whose snapshots wait for bytes of the upload bound.
    rewound: VecDeque<(WorkId, JobKey, Rewound)>,
    uploads: BTreeMap<WorkId, Upload>,
    work: VecDeque<Work>,
    works_named: u64,
    rewinds_max: usize,
    upload_bytes_max: u64,
    memory_bytes_max: u64,
}

#[derive(Debug)]
struct Job {
    /// The rewind, and then the upload, that makes this answer.
    work: WorkId,
    deadline_ns: u64,
    /// Known after the rewind; sent again on a new stream until it is known to have arrived.
    answer: Option<Outgoing>,
    /// Number of the report on the present stream whose acknowledgement also covers the answer.
    arrives_with: Option<u64>,
    has_arrived: bool,
    /// True if the coordinator has the snapshot, or there is none.
    is_stored: bool,
}

/// A rewind in progress.
#[derive(Debug)]
struct Rewinding {
    key: JobKey,
    /// Account of the tape's user.
    account: Account,
    /// Memory that the rewind may take, in bytes.
    bytes_max: u64,
}

/// A snapshot admitted within the memory bound.
#[derive(Debug)]
struct Upload {
    key: JobKey,
    snapshot: EncodedSnapshot,
    failures: u32,
    /// Time of the next attempt; none while an attempt is running.
    retry_ns: Option<u64>,
}

impl Captures {
    /// No answers yet.
    pub(crate) fn new(config: &Config) -> Self {
        let mut captures = Self {
            jobs: BTreeMap::new(),
            own: BTreeSet::new(),
            waiting: Vec::new(),
            turns: Turns::default(),
            rewinding: BTreeMap::new(),
            rewound: VecDeque::new(),
            uploads: BTreeMap::new(),
            work: VecDeque::new(),
            works_named: 0,
            rewinds_max: config.rewinds_max,
            upload_bytes_max: 0,
            memory_bytes_max: 0,
        };
        captures.divide(config, 1);
        captures
    }

    /// Takes the part of the bounds that each of this number of agents has; of rewinds at the same
    /// time, the agents share the permits of the node.
    pub(crate) fn divide(&mut self, config: &Config, agents: u64) {
        let agents = agents.max(1);
        self.upload_bytes_max = config.upload_bytes_max / agents;
        self.memory_bytes_max = config.capture_bytes_max() / agents;
    }

    /// Starts an answer. One that is in the making already is answered again when it is known;
    /// `Some` is an answer at once.
    pub(crate) fn start(
        &mut self,
        now_ns: u64,
        key: JobKey,
        rewind: Rewind,
        deadline: Option<Duration>,
    ) -> Option<Outgoing> {
        if let Some(job) = self.jobs.get(&key) {
            return job.answer.clone();
        }
        if self.jobs.len() >= ANSWERS_IN_PROGRESS_MAX {
            let why = format!(
                "the agent has {ANSWERS_IN_PROGRESS_MAX} captures to answer: ask again later"
            );
            return Some(refusal(&key, &why));
        }
        let work = self.name_work();
        let job = Job {
            work,
            deadline_ns: after(now_ns, deadline.unwrap_or(DEADLINE_DEFAULT).min(DEADLINE_MAX)),
            answer: None,
            arrives_with: None,
            has_arrived: false,
            is_stored: false,
        };
        self.jobs.insert(key.clone(), job);
        self.waiting.push((work, key, rewind));
        self.begin_rewinds();
        None
    }

    /// Starts an agent-initiated rewind; [`Self::rewound`] returns its result.
    pub(crate) fn start_own(&mut self, key: JobKey, rewind: Rewind) {
        let work = self.name_work();
        self.own.insert(work);
        self.waiting.push((work, key, rewind));
        self.begin_rewinds();
    }

    /// Takes the next work; none when the queue is empty.
    pub(crate) fn take_work(&mut self) -> Option<Work> {
        self.work.pop_front()
    }

    /// Takes the result of a rewind. Returns the result of an agent-initiated one.
    pub(crate) fn rewound(
        &mut self,
        now_ns: u64,
        id: WorkId,
        rewound: Rewound,
    ) -> Option<(JobKey, Rewound)> {
        let Rewinding { key, .. } = self.rewinding.remove(&id)?;
        let own = if self.own.remove(&id) {
            Some((key, rewound))
        } else {
            self.rewound.push_back((id, key, rewound));
            None
        };
        self.admit(now_ns);
        own
    }

    /// A try at sending a snapshot came to its end.
    pub(crate) fn uploaded(&mut self, now_ns: u64, id: WorkId, result: Result<(), UploadError>) {
        let Some(upload) = self.uploads.get_mut(&id) else { return };
        let job = self.jobs.get_mut(&upload.key).filter(|job| job.work == id);
        match (result, job) {
            (Ok(()), Some(job)) => job.is_stored = true,
            (Err(error), Some(job)) if !error.is_final() && now_ns < job.deadline_ns => {
                let wait = backoff(upload.failures, backoff::MIDDLE);
                upload.failures = upload.failures.saturating_add(1);
                upload.retry_ns = Some(after(now_ns, wait));
                return;
            }
            (Err(error), Some(_)) => {
                let key = upload.key.clone();
                self.give_up(&key, &error.to_string());
            }
            // Its deadline has passed meanwhile.
            (_, None) => {}
        }
        self.uploads.remove(&id);
        self.forget_done();
        self.admit(now_ns);
    }

    /// Begins due attempts again, and gives up answers whose deadline has passed.
    pub(crate) fn pass_time(&mut self, now_ns: u64) {
        let is_late = |job: &Job| now_ns >= job.deadline_ns;
        let late: Vec<JobKey> =
            self.jobs.iter().filter(|(_, job)| is_late(job)).map(|(key, _)| key.clone()).collect();
        for key in late {
            self.give_up(&key, "its deadline passed");
        }
        let (jobs, own) = (&self.jobs, &self.own);
        let is_wanted = |id: WorkId, key: &JobKey| jobs.get(key).is_some_and(|job| job.work == id);
        // The agent's own have no job and no deadline: they wait for as long as it takes.
        self.waiting.retain(|(id, key, _)| own.contains(id) || is_wanted(*id, key));
        // What is being sent keeps its share until it has come to its end.
        self.uploads.retain(|id, each| each.retry_ns.is_none() || is_wanted(*id, &each.key));
        let is_due = |each: &&mut Upload| each.retry_ns.is_some_and(|at_ns| at_ns <= now_ns);
        let due: Vec<WorkId> = self
            .uploads
            .iter_mut()
            .filter(|(_, each)| is_due(each))
            .map(|(id, each)| {
                each.retry_ns = None;
                *id
            })
            .collect();
        for id in due {
            self.send(now_ns, id);
        }
        self.admit(now_ns);
    }

    /// When [`Self::pass_time`] will have something to do; none when never.
    pub(crate) fn next_ns(&self) -> Option<u64> {
        let deadlines = self.jobs.values().map(|job| job.deadline_ns);
        deadlines.chain(self.uploads.values().filter_map(|each| each.retry_ns)).min()
    }

    /// Starts a new stream: answers without an acknowledgement are sent again.
    pub(crate) fn start_stream(&mut self) {
        for job in self.jobs.values_mut() {
            job.arrives_with = None;
        }
    }

    /// Answers to be sent on this stream.
    pub(crate) fn unsent(&self) -> Vec<(JobKey, Outgoing)> {
        let unsent =
            self.jobs.iter().filter(|(_, job)| !job.has_arrived && job.arrives_with.is_none());
        unsent.filter_map(|(key, job)| Some((key.clone(), job.answer.clone()?))).collect()
    }

    /// Notes that an answer was sent; the acknowledgement of this report covers it.
    pub(crate) fn sent(&mut self, key: &JobKey, report: u64) {
        if let Some(job) = self.jobs.get_mut(key) {
            job.arrives_with = Some(report);
        }
    }

    /// Everything up to this report has arrived.
    pub(crate) fn acked(&mut self, report: u64) {
        for job in self.jobs.values_mut() {
            job.has_arrived |= job.arrives_with.is_some_and(|number| number <= report);
        }
        self.forget_done();
    }

    /// True while an answer about this tape is in the making.
    pub(crate) fn needs(&self, tape_id: &str) -> bool {
        self.jobs.keys().any(|key| key.tape_id == tape_id)
    }

    /// Bytes of the upload bound that admitted snapshots occupy, at most the bound for each.
    pub(crate) fn held_bytes(&self) -> u64 {
        self.uploads.values().fold(0, |sum, each| sum.saturating_add(self.share(&each.snapshot)))
    }

    /// Memory that rewinds may take and that snapshots take until they are uploaded, in bytes.
    pub(crate) fn memory_bytes(&self) -> u64 {
        let rewound = self.rewound.iter().filter_map(|(.., rewound)| rewound.snapshot.as_ref());
        let snapshots = rewound.chain(self.uploads.values().map(|upload| &upload.snapshot));
        let rewinding = self.rewinding.values().map(|rewinding| rewinding.bytes_max);
        rewinding.chain(snapshots.map(|snapshot| snapshot.bytes.len() as u64)).sum()
    }

    /// Bytes of the upload bound that a snapshot occupies: its length, at most the whole bound.
    fn share(&self, snapshot: &EncodedSnapshot) -> u64 {
        (snapshot.bytes.len() as u64).min(self.upload_bytes_max)
    }

    /// Hands out a work that belongs to no answer.
    pub(crate) fn add_work(&mut self, work: Work) {
        self.work.push_back(work);
    }

    /// A name for such a work.
    pub(crate) fn name_work(&mut self) -> WorkId {
        self.works_named += 1;
        WorkId(self.works_named)
    }

    /// Begins rewinds while permits and memory are free. Next is the user with the fewest running
    /// rewinds, and among equals the user served longest ago. So a user with many requests delays
    /// another user by one rewind.
    fn begin_rewinds(&mut self) {
        let (jobs, own) = (&self.jobs, &self.own);
        let is_wanted = |id: WorkId, key: &JobKey| jobs.get(key).is_some_and(|job| job.work == id);
        self.waiting.retain(|(id, key, _)| own.contains(id) || is_wanted(*id, key));
        while self.rewinding.len() + self.rewound.len() < self.rewinds_max {
            let of_each = self.rewinding.values().map(|rewinding| (rewinding.account, 1));
            let (running, turns) = (of_each.collect::<Amounts<Account>>(), &self.turns);
            let next = self.waiting.iter().enumerate().min_by_key(|(_, (.., rewind))| {
                (running.of(rewind.account), turns.last(rewind.account))
            });
            let Some((at, (.., rewind))) = next else { return };
            let (account, bytes_max) = (rewind.account, rewind.bytes().min(self.memory_bytes_max));
            if self.memory_bytes().saturating_add(bytes_max) > self.memory_bytes_max {
                return;
            }
            let (id, key, mut rewind) = self.waiting.remove(at);
            rewind.bytes_max = bytes_max;
            self.turns.give(account);
            self.rewinding.insert(id, Rewinding { key, account, bytes_max });
            self.work.push_back(Work::Rewind(id, rewind));
        }
    }

    /// Admits finished snapshots in order, and frees their permits for other rewinds.
    fn admit(&mut self, now_ns: u64) {
        while let Some((id, key, rewound)) = self.rewound.pop_front() {
            if self.jobs.get(&key).is_none_or(|job| job.work != id) {
                continue;
            }
            let Some(snapshot) = &rewound.snapshot else {
                let answer = answer(&key, &rewound);
                if let Some(job) = self.jobs.get_mut(&key) {
                    (job.answer, job.is_stored) = (Some(answer), true);
                }
                continue;
            };
            if self.held_bytes().saturating_add(self.share(snapshot)) > self.upload_bytes_max {
                self.rewound.push_front((id, key, rewound));
                break;
            }
            let answer = answer(&key, &rewound);
            if let Some(job) = self.jobs.get_mut(&key) {
                job.answer = Some(answer);
            }
            let Some(snapshot) = rewound.snapshot else { continue };
            self.uploads.insert(id, Upload { key, snapshot, failures: 0, retry_ns: None });
            self.send(now_ns, id);
        }
        self.begin_rewinds();
    }

    fn send(&mut self, now_ns: u64, id: WorkId) {
        let Some(upload) = self.uploads.get(&id) else { return };
        let Some(job) = self.jobs.get(&upload.key) else { return };
        let time_left = Duration::from_nanos(job.deadline_ns.saturating_sub(now_ns));
        let (key, snapshot) = (upload.key.clone(), upload.snapshot.clone());
        self.work.push_back(Work::Upload(id, key, snapshot, time_left));
    }

    fn give_up(&mut self, key: &JobKey, why: &str) {
        let Some(job) = self.jobs.remove(key) else { return };
        if !job.is_stored {
            let JobKey { capture_id, tape_id } = key;
            let (capture, tape) = (capture_id, tape_id);
            tracing::warn!(?capture, ?tape, "part of a capture was not stored: {why}");
        }
    }

    fn forget_done(&mut self) {
        self.jobs.retain(|_, job| !(job.is_stored && job.has_arrived));
    }
}

/// The answer for a missing or unreadable tape.
pub(crate) fn refusal(key: &JobKey, why: &str) -> Outgoing {
    Outgoing::CaptureAnswer(capture_answer(&key.capture_id, &key.tape_id, &no_tape(why)))
}

fn answer(key: &JobKey, rewound: &Rewound) -> Outgoing {
    Outgoing::CaptureAnswer(capture_answer(&key.capture_id, &key.tape_id, &rewound.answer))
}

/// The time `time` after `now_ns`, in nanoseconds.
pub(crate) fn after(now_ns: u64, time: Duration) -> u64 {
    now_ns.saturating_add(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX))
}
