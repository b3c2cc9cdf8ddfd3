//! The bucket of a simulation: objects in memory behind one lock, and the requests and answers that
//! are under way.
//!
//! A request takes effect in one step when it arrives. It arrives also when its sender was killed,
//! stopped or has given it up meanwhile. What becomes of a request is drawn when it is sent.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use object_store::memory::InMemory;
use object_store::path::Path;
use object_store::{
    ObjectStore as _, ObjectStoreExt as _, PutMode, PutOptions, PutPayload, PutResult, Result,
};

use crate::coordinators::Broken;
use crate::coordinators::script::Weather;
use crate::plan::SECOND_NS;

/// Time after which a collector that ought not to be there removes a fence.
const FENCE_NS: u64 = SECOND_NS;

/// The bucket; clones are handles of the same.
#[derive(Clone, Debug)]
pub(crate) struct SimulatedBucket(Arc<Mutex<State>>);

struct State {
    objects: Objects,
    weather: Weather,
    /// Machines that nothing gets from and to.
    cut: Vec<usize>,
    /// What is under way, by the time at which it arrives; the number keeps the order.
    way: BTreeMap<(u64, u64), Travels>,
    /// Number of requests and answers that were sent.
    sent: u64,
}

/// Hands an answer out; the argument says whether it was lost.
pub(crate) type Answer = Box<dyn FnOnce(bool) + Send>;

/// Something under way.
pub(crate) enum Travels {
    /// A request, which does this.
    Request(Box<dyn Fn(&mut Objects) + Send>),
    /// An answer to a machine, or the end of its patience.
    Answer { to: usize, is_lost: bool, answer: Answer },
    /// A collector removes a fence.
    Removal(Path),
}

/// The objects.
pub(crate) struct Objects {
    kept: InMemory,
    broken: Option<Broken>,
    /// Fences that a collector has found.
    found: Vec<Path>,
    /// Requests that arrived.
    pub(crate) requests: u64,
}

impl SimulatedBucket {
    pub(crate) fn new(weather: Weather, broken: Option<Broken>) -> Self {
        let objects = Objects { kept: InMemory::new(), broken, found: Vec::new(), requests: 0 };
        let (cut, way) = (Vec::new(), BTreeMap::new());
        Self(Arc::new(Mutex::new(State { objects, weather, cut, way, sent: 0 })))
    }

    pub(crate) fn weather(&self) -> Weather {
        self.lock().weather
    }

    /// All is well from now on.
    pub(crate) fn calm(&self) {
        let mut state = self.lock();
        state.weather = state.weather.calm();
        state.cut.clear();
    }

    /// Cuts a machine off.
    pub(crate) fn cut(&self, machine: usize) {
        self.lock().cut.push(machine);
    }

    /// Ends one cut of a machine.
    pub(crate) fn join(&self, machine: usize) {
        let mut state = self.lock();
        if let Some(at) = state.cut.iter().position(|cut| *cut == machine) {
            state.cut.swap_remove(at);
        }
    }

    pub(crate) fn is_cut(&self, machine: usize) -> bool {
        self.lock().cut.contains(&machine)
    }

    /// Requests that arrived so far.
    pub(crate) fn requests(&self) -> u64 {
        self.lock().objects.requests
    }

    pub(crate) fn send(&self, arrives_ns: u64, what: Travels) {
        self.lock().send(arrives_ns, what);
    }

    /// When the next answer reaches this machine.
    pub(crate) fn next_answer_ns(&self, machine: usize) -> Option<u64> {
        let is_its = |what: &Travels| matches!(what, Travels::Answer { to, .. } if *to == machine);
        self.lock().way.iter().find(|(_, what)| is_its(what)).map(|((at_ns, _), _)| *at_ns)
    }

    /// Lets everything arrive that does so until this time.
    pub(crate) fn arrive(&self, until_ns: u64) {
        let mut state = self.lock();
        while let Some(next) = state.way.first_entry().filter(|next| next.key().0 <= until_ns) {
            let ((at_ns, _), what) = next.remove_entry();
            match what {
                Travels::Request(request) => {
                    request(&mut state.objects);
                    for fence in std::mem::take(&mut state.objects.found) {
                        state.send(at_ns + FENCE_NS, Travels::Removal(fence));
                    }
                }
                Travels::Answer { to, is_lost: false, answer } if state.cut.contains(&to) => {
                    let ends_ns = at_ns + state.weather.patience_ns;
                    state.send(ends_ns, Travels::Answer { to, is_lost: true, answer });
                }
                Travels::Answer { is_lost, answer, .. } => answer(is_lost),
                // It may be gone.
                Travels::Removal(fence) => drop(state.objects.delete(&fence)),
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn send(&mut self, arrives_ns: u64, what: Travels) {
        self.sent += 1;
        self.way.insert((arrives_ns, self.sent), what);
    }
}

impl Objects {
    /// Stores an object, if its condition is met.
    pub(crate) fn put(
        &mut self,
        path: &Path,
        payload: PutPayload,
        mut options: PutOptions,
    ) -> Result<PutResult> {
        if self.broken == Some(Broken::ConditionsIgnored) {
            options.mode = PutMode::Overwrite;
        }
        let is_fence = payload.content_length() == 0 && path.as_ref().contains("/wal/");
        let put = at_once(self.kept.put_opts(path, payload, options))?;
        if is_fence && self.broken == Some(Broken::FencesDeleted) {
            self.found.push(path.clone());
        }
        Ok(put)
    }

    pub(crate) fn delete(&mut self, path: &Path) -> Result<()> {
        at_once(self.kept.delete(path))
    }

    /// The objects, for requests that have no condition.
    pub(crate) fn kept(&self) -> &InMemory {
        &self.kept
    }
}

impl fmt::Debug for State {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(to, "{}, {} under way", self.objects.kept, self.way.len())
    }
}

/// What a future answers that waits for nothing, as all of objects in memory do.
pub(crate) fn at_once<T>(future: impl Future<Output = T>) -> T {
    let mut future = std::pin::pin!(future);
    match future.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(value) => value,
        Poll::Pending => panic!("objects in memory wait"),
    }
}
