//! Plays a script: lets the machines run, carries requests and answers between them and the
//! bucket, and lets the turns of the script happen, all in the order of time.
//!
//! Machines meet in the bucket only. So the one that is behind runs until an answer reaches it or a
//! turn happens; a request arrives when every machine has run as far as that.

use std::collections::BTreeMap;
use std::sync::Arc;

use fastrand::Rng;

use crate::coordinators::bucket::{SimulatedBucket, at_once};
use crate::coordinators::clock::Clock;
use crate::coordinators::history::{History, Rows};
use crate::coordinators::machine::Machine;
use crate::coordinators::script::{Script, Turn};
use crate::coordinators::work::{self, Order, Phase, Process};
use crate::coordinators::{Broken, Counts, Outcome, trace};
use crate::plan::{MS_NS, SECOND_NS};

/// Time after which an owner must acknowledge when all is well, beside two requests that get no
/// answer: a hint gets old by the slowest clock, and is claimed.
const LIVE_NS_MAX: u64 = 60 * SECOND_NS;

/// Time that the owner goes on for, and then that the last owner may take.
const GO_ON_NS: u64 = 2 * SECOND_NS;
const END_NS_MAX: u64 = 400 * SECOND_NS;

/// Time until a process that ended is started again.
const RESTART_NS_MAX: u64 = 3 * SECOND_NS;

/// What happens in the world outside the machines.
#[derive(Clone, Copy, Debug)]
enum Event {
    Turn(usize, Turn),
    Start(usize),
    GoOn(usize, u32),
    Join(usize),
    Calm,
}

struct Play {
    script: Arc<Script>,
    broken: Option<Broken>,
    is_traced: bool,
    rng: Rng,
    bucket: SimulatedBucket,
    history: Arc<History>,
    machines: Vec<Machine>,
    events: BTreeMap<(u64, u64), Event>,
    /// Number of events that were planned.
    planned: u64,
    now_ns: u64,
    are_restarted: bool,
    counts: Counts,
}

/// Plays a script to its end.
pub(crate) fn play(script: Script, seed: u64, broken: Option<Broken>, is_traced: bool) -> Outcome {
    let mut play = Play::new(script, seed, broken, is_traced);
    let rows = play.run();
    let totals = play.history.totals();
    let mut counts = Counts {
        takes: totals.takes,
        acknowledged: totals.acknowledged,
        acts: totals.acts,
        late_acts: totals.late_acts,
        requests: play.bucket.requests(),
        simulated_ms: play.now_ns / MS_NS,
        ..play.counts
    };
    let (rows, again) = rows.unwrap_or_else(|why| {
        play.history.breaks(why);
        counts.unread += 1;
        Default::default()
    });
    let broken =
        if counts.unread > 0 { play.history.broken() } else { play.history.check(&rows, &again) };
    Outcome { broken, counts }
}

impl Play {
    fn new(script: Script, seed: u64, broken: Option<Broken>, is_traced: bool) -> Self {
        let mut play = Self {
            bucket: SimulatedBucket::new(script.weather, broken),
            machines: (script.rates.iter().zip(&script.ahead_ns))
                .map(|(rate, ahead_ns)| Machine::new(*rate, *ahead_ns))
                .collect(),
            script: Arc::new(script),
            broken,
            is_traced,
            // Another one than that of the script.
            rng: Rng::with_seed(!seed),
            history: Arc::default(),
            events: BTreeMap::new(),
            planned: 0,
            now_ns: 0,
            are_restarted: true,
            counts: Counts::default(),
        };
        let script = play.script.clone();
        for machine in 0..play.machines.len() {
            let start_ns = play.rng.u64(0..SECOND_NS);
            play.plan(start_ns, Event::Start(machine));
        }
        for (at_ns, machine, turn) in &script.turns {
            play.plan(*at_ns, Event::Turn(*machine, *turn));
        }
        play.plan(script.calm_ns, Event::Calm);
        play
    }

    fn plan(&mut self, at_ns: u64, event: Event) {
        self.planned += 1;
        self.events.insert((at_ns, self.planned), event);
    }

    /// What the last owner reads, or what did not come to pass.
    fn run(&mut self) -> Result<(Rows, Rows), &'static str> {
        let (calm_ns, history) = (self.script.calm_ns, self.history.clone());
        self.run_until(calm_ns, || false);
        let live_ns = calm_ns + LIVE_NS_MAX + 2 * self.script.weather.patience_ns;
        self.run_until(live_ns, || history.has_acknowledged_since(calm_ns));
        if !history.has_acknowledged_since(calm_ns) {
            return Err("no owner acknowledges anything after the last fault");
        }
        self.counts.live_ms_max = (self.now_ns - calm_ns) / MS_NS;
        self.run_until(self.now_ns + GO_ON_NS, || false);
        // Those that wait would take the shard from the last owner. Former owners may be among the
        // others, and go on.
        self.are_restarted = false;
        for machine in &mut self.machines {
            if machine.process().is_some_and(|process| process.phase() != Phase::Owns) {
                machine.kill();
            }
        }
        let mut last = Machine::new(1.0, 0);
        let bucket = self.bucket.clone();
        let process = self.process(self.machines.len(), 0);
        let read = last.start(self.now_ns, process, |process| work::end(process, bucket));
        self.machines.push(last);
        self.run_until(self.now_ns + END_NS_MAX, || read.is_finished());
        let read = if read.is_finished() { at_once(read).ok().flatten() } else { None };
        read.ok_or("the shard cannot be read in the end")
    }

    /// Lets everything happen until this time, or until nothing more is to be.
    fn run_until(&mut self, end_ns: u64, is_done: impl Fn() -> bool) {
        while self.now_ns < end_ns && !is_done() {
            let event_ns = self.events.first_key_value().map_or(end_ns, |((at_ns, _), _)| *at_ns);
            let world_ns = event_ns.min(end_ns);
            let at = |machine: &Machine, number| machine.at_ns().map(|at_ns| (at_ns, number));
            let all = self.machines.iter().enumerate();
            let behind = all.filter_map(|(number, machine)| at(machine, number)).min();
            if let Some((at_ns, number)) = behind {
                let answer_ns = self.bucket.next_answer_ns(number).unwrap_or(u64::MAX);
                if at_ns < world_ns.min(answer_ns) {
                    self.machines[number].run(world_ns.min(answer_ns));
                    if self.machines[number].is_down() {
                        self.ended(at_ns, number);
                    }
                    continue;
                }
            }
            self.now_ns = behind.map_or(world_ns, |(at_ns, _)| at_ns.min(world_ns));
            self.bucket.arrive(self.now_ns);
            if self.now_ns >= event_ns
                && let Some((_, event)) = self.events.pop_first()
            {
                self.happen(event);
            }
        }
    }

    /// A process ended by itself.
    fn ended(&mut self, at_ns: u64, number: usize) {
        self.counts.ends += 1;
        let start_ns = at_ns.max(self.now_ns) + self.rng.u64(100 * MS_NS..RESTART_NS_MAX);
        self.plan(start_ns, Event::Start(number));
    }

    fn happen(&mut self, event: Event) {
        if self.is_traced {
            trace(self.now_ns, format_args!("{event:?}"));
        }
        match event {
            Event::Turn(number, turn) => self.turn(number, turn),
            Event::Start(number) => self.start(number),
            Event::GoOn(number, starts) => {
                if self.machines[number].starts() == starts {
                    self.machines[number].go_on(self.now_ns);
                }
            }
            Event::Join(number) => self.bucket.join(number),
            Event::Calm => {
                self.bucket.calm();
                for number in 0..self.machines.len() {
                    self.machines[number].go_on(self.now_ns);
                    self.start(number);
                }
            }
        }
    }

    fn turn(&mut self, number: usize, turn: Turn) {
        self.counts.turns += 1;
        let machine = &mut self.machines[number];
        match turn {
            Turn::Kill(for_ns) => {
                machine.kill();
                self.plan(self.now_ns + for_ns, Event::Start(number));
            }
            Turn::Stop { for_ns, stands } => {
                if machine.stop(self.now_ns, stands) {
                    let starts = machine.starts();
                    self.plan(self.now_ns + for_ns, Event::GoOn(number, starts));
                }
            }
            Turn::Cut(for_ns) => {
                self.bucket.cut(number);
                self.plan(self.now_ns + for_ns, Event::Join(number));
            }
            Turn::Leave | Turn::GiveUp => {
                if let Some(process) = machine.process() {
                    let leaves = matches!(turn, Turn::Leave);
                    process.order(if leaves { Order::Leave } else { Order::GiveUp });
                }
            }
        }
    }

    fn start(&mut self, number: usize) {
        if !self.are_restarted || !self.machines[number].is_down() {
            return;
        }
        let process = self.process(number, self.machines[number].starts());
        let (bucket, script) = (self.bucket.clone(), self.script.clone());
        self.machines[number]
            .start(self.now_ns, process, |process| work::live(process, bucket, script));
    }

    fn process(&mut self, number: usize, starts: u32) -> impl FnOnce(Clock) -> Process + use<> {
        let (history, rng) = (self.history.clone(), self.rng.fork());
        let (name, rules) = (format!("{number}-{starts}"), (self.broken, self.is_traced));
        move |clock| Process::new((number, name), clock, history, rules, rng)
    }
}
