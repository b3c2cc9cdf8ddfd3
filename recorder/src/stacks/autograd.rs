//! Links the memory of a backward pass to the line of the forward pass.
//!
//! Autograd's own threads run no Python, so a gradient has no line. But PyTorch numbers the nodes
//! of the graph: an operator takes the next number of its thread for its node before it allocates
//! its result. So at an allocation of the forward pass the last number taken is that of the running
//! operator's node, and in the backward pass the running node gives its number.
//!
//! A table keeps, for the newest `GRAPH_NODES_MAX` nodes, the stack of the first allocation after
//! the node was made. For an operator that allocates its result, that is its own line. An operator
//! that allocates nothing (a view) gets the line of the next allocation if no other node is made
//! before it, which is nearly always the same line or the next. The first frame of the stack names
//! the node, so that the stack is not mistaken for one of the forward pass. A node that is no
//! longer in the table, or was never the last, has only its name.
//!
//! ```text
//! forward   peek() = k + 1          k ─▶ stack        peek: at::sequence_number
//! backward  current node's number k ─▶ that stack     get_current_node: torch::autograd
//! ```
//!
//! Both functions are PyTorch's, take no lock, and exist since 2.0; without them the stack of a
//! backward pass is the thread's name. The first is called only until it is known which
//! thread-local word it returns (`thread_word.rs`).

use std::cell::Cell;
use std::ffi::{CStr, c_char, c_void};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use crate::host::errno::keeping_errno;
use crate::host::symbols::{Library, Symbol};
use crate::host::threads::thread_pointer;
use crate::stacks::thread_word::ThreadWord;

/// Nodes whose forward line is kept: a forward pass of a large model has some ten thousand.
const GRAPH_NODES_MAX: usize = 1 << 16;

/// Bytes of a node's name that are kept.
const NODE_NAME_BYTES_MAX: usize = 128;

/// `AccumulateGrad` and other nodes that are not made by an operator.
const NO_NUMBER: u64 = u64::MAX;

/// `sequence_nr_` and `thread_id_` of `torch::autograd::Node`, whose first base is
/// `enable_shared_from_this`.
const NODE_NUMBER: usize = 24;
const NODE_THREAD: usize = 48;

/// `_M_use_count` of libstdc++'s `_Sp_counted_base`.
const USE_COUNT: usize = 8;

type Peek = unsafe extern "C" fn() -> u64;
type ThreadId = unsafe extern "C" fn() -> u64;
type CurrentNode = unsafe extern "C" fn(*mut SharedNode) -> *mut SharedNode;

// SAFETY: `uint64_t at::sequence_number::peek()`.
static PEEK: Symbol<Peek> =
    unsafe { Symbol::new(&Library::TORCH, c"_ZN2at15sequence_number4peekEv") };
// SAFETY: `uint64_t at::RecordFunction::currentThreadId()`, static.
static THREAD_ID: Symbol<ThreadId> =
    unsafe { Symbol::new(&Library::TORCH, c"_ZN2at14RecordFunction15currentThreadIdEv") };
// SAFETY: `std::shared_ptr<Node> torch::autograd::get_current_node()`: the result is written
// to memory that the caller gives.
static CURRENT_NODE: Symbol<CurrentNode> =
    unsafe { Symbol::new(&Library::TORCH, c"_ZN5torch8autograd16get_current_nodeEv") };

/// Return value of [`PEEK`].
static NEXT: ThreadWord = ThreadWord::new();

/// An entry for each node: its mark (upper half) and its forward stack (lower half).
static FORWARD: [AtomicU64; GRAPH_NODES_MAX] = [const { AtomicU64::new(0) }; GRAPH_NODES_MAX];

thread_local! {
    /// PyTorch's id of the thread; 0 is not asked yet.
    static THREAD: Cell<u64> = const { Cell::new(0) };
}

/// Threads whose last number is kept.
const THREADS_MAX: usize = 64;

/// The last number that was seen on a thread, with the thread. Two threads that share an entry read
/// their nodes more often. A thread that begins with the control block and the number of one that
/// has ended does not note its first node. Not thread-local, which would cost a call.
static LAST: [AtomicU64; THREADS_MAX] = [const { AtomicU64::new(0) }; THREADS_MAX];

/// `std::shared_ptr<Node>`.
#[repr(C)]
struct SharedNode {
    node: usize,
    control: usize,
}

/// The autograd node that the calling thread runs in a backward pass.
pub(crate) struct Node {
    /// Class of the node, as the address of its table of virtual functions.
    pub(crate) kind: u64,
    /// The forward stack; 0 when it is not known.
    pub(crate) forward: u32,
    name: ClassName,
}

/// The calling thread allocates in a forward pass, or in none, with this stack.
#[inline(always)]
pub(crate) fn note_forward(stack: u32) {
    let Some(next) = NEXT.get().or_else(ask_next) else { return };
    let pointer = thread_pointer();
    // The pointer's low bits are zero and its high bits few: both fit into one word. The index is
    // hashed, because threads' stacks lie at equal distances.
    let seen = pointer << 16 ^ next;
    let index = pointer.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (u64::BITS - THREADS_MAX.ilog2());
    if let Some(last) = LAST.get(index as usize)
        && last.load(Ordering::Relaxed) != seen
        && stack != 0
    {
        last.store(seen, Ordering::Relaxed);
        note_new(next, stack);
    }
}

/// Asks PyTorch for the number, until it is known where PyTorch keeps it.
#[inline(never)]
fn ask_next() -> Option<u64> {
    let peek = PEEK.get()?;
    keeping_errno(|| {
        // SAFETY: the function reads a thread-local number.
        let next = unsafe { peek() };
        NEXT.learn(peek as *const c_void, next);
        Some(next)
    })
}

/// Notes an allocation of this thread, probably the first since a node was made.
#[inline(never)]
fn note_new(next: u64, stack: u32) {
    let thread = match (THREAD.get(), THREAD_ID.get()) {
        // SAFETY: the function reads a thread-local number, and gives the thread one if need be.
        (0, Some(thread_id)) => keeping_errno(|| unsafe { thread_id() }),
        (known, _) => known,
    };
    THREAD.set(thread);
    if let Some(number) = next.checked_sub(1) {
        note(number, thread, stack);
    }
}

/// Notes the stack of a node, unless one is noted already.
fn note(number: u64, thread: u64, stack: u32) {
    let mark = mark(number, thread);
    if let Some(entry) = entry(number, thread)
        && entry.load(Ordering::Relaxed) >> 32 != mark
    {
        entry.store(mark << 32 | u64::from(stack), Ordering::Relaxed);
    }
}

/// The stack that was noted for a node; 0 when there is none.
fn noted(number: u64, thread: u64) -> u32 {
    let known = entry(number, thread).map_or(0, |entry| entry.load(Ordering::Relaxed));
    if known >> 32 == mark(number, thread) { known as u32 } else { 0 }
}

/// The entry of a node that has a number. Each thread counts from 0, so each begins at an index
/// of its own.
fn entry(number: u64, thread: u64) -> Option<&'static AtomicU64> {
    let index = number.wrapping_add(thread.wrapping_mul(0x9e37)) as usize % GRAPH_NODES_MAX;
    FORWARD.get(index).filter(|_| number != NO_NUMBER)
}

/// A mark that tells nodes with the same entry apart. Only the low half is used.
fn mark(number: u64, thread: u64) -> u64 {
    let mixed = (number ^ thread.rotate_left(48)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (mixed >> 32) | 1
}

/// The node that the calling thread runs, if it is in a backward pass.
pub(crate) fn current_node() -> Option<Node> {
    let get_current_node = CURRENT_NODE.get()?;
    let mut shared = SharedNode { node: 0, control: 0 };
    // SAFETY: there is room for a `shared_ptr`, which is written there. `release` gives back
    // what it owns; the engine's own pointers keep the node alive while it runs, as it does now.
    unsafe {
        get_current_node(&mut shared);
        release(shared.control);
    }
    if shared.node == 0 {
        return None;
    }
    let word = |offset: usize| {
        // SAFETY: a live node, which has all of these.
        unsafe { std::ptr::read((shared.node + offset) as *const u64) }
    };
    let (kind, number, thread) = (word(0), word(NODE_NUMBER), word(NODE_THREAD));
    Some(Node { kind, forward: noted(number, thread), name: ClassName(kind as usize) })
}

/// Gives back one use of a `shared_ptr`, never the last: only PyTorch destroys a node. The engine
/// holds a use while the node runs.
///
/// # Safety
/// `control` must be 0 or a live control block of libstdc++ on which the caller holds a use.
unsafe fn release(control: usize) {
    if control == 0 {
        return;
    }
    // SAFETY: the caller's promise; the count is changed by several threads, always atomically.
    let uses = unsafe { &*((control + USE_COUNT) as *const AtomicU32) };
    let less = |count: u32| count.checked_sub(1).filter(|&left| left > 0);
    let _ = uses.fetch_update(Ordering::AcqRel, Ordering::Relaxed, less);
}

impl Node {
    /// The name of its class without namespaces: `CosBackward0`.
    pub(crate) fn name(&self) -> &'static [u8] {
        self.name.short().filter(|name| !name.is_empty()).unwrap_or(b"backward")
    }
}

/// The class of a table of virtual functions. Its `type_info` lies before the table.
struct ClassName(usize);

impl ClassName {
    fn short(&self) -> Option<&'static [u8]> {
        let Self(table) = *self;
        // SAFETY: the table of a live object of a class with virtual functions: the word before it
        // points to its `type_info`, whose second word is its name, a constant of the library.
        let name = unsafe {
            let info = *((table - size_of::<usize>()) as *const *const *const c_char);
            if info.is_null() {
                return None;
            }
            CStr::from_ptr(*info.add(1)).to_bytes()
        };
        last_part(name.strip_prefix(b"*").unwrap_or(name))
    }
}

/// The last name of a mangled one, `CosBackward0` of `N5torch8autograd9generated12CosBackward0E`.
/// A template's arguments are left out.
fn last_part(mangled: &[u8]) -> Option<&[u8]> {
    let mut rest = mangled.strip_prefix(b"N").unwrap_or(mangled);
    let mut last = None;
    while rest.first().is_some_and(u8::is_ascii_digit) {
        let digits = rest.iter().take_while(|byte| byte.is_ascii_digit()).count();
        let (number, after) = rest.split_at_checked(digits)?;
        let length: usize = std::str::from_utf8(number).ok()?.parse().ok()?;
        let (name, after) = after.split_at_checked(length)?;
        last = Some(name.get(..NODE_NAME_BYTES_MAX).unwrap_or(name));
        rest = after;
    }
    last
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_lose_their_namespaces() {
        let last = |mangled: &'static str| {
            last_part(mangled.as_bytes()).map(|name| String::from_utf8_lossy(name).into_owned())
        };
        let cos = "N5torch8autograd9generated12CosBackward0E";
        assert_eq!(last(cos).as_deref(), Some("CosBackward0"));
        assert_eq!(last("N5torch8autograd7CppNodeI3AbcEE").as_deref(), Some("CppNode"));
        assert_eq!(last("3Abc").as_deref(), Some("Abc"));
        assert_eq!(last("N99tooShort"), None);
        assert_eq!(last("i"), None);
    }

    #[test]
    fn a_use_is_released_but_never_the_last_one() {
        let mut control = [0u32, 0, 2, 1];
        let at = (&raw mut control) as usize;
        // SAFETY: laid out as libstdc++ does: the count is at byte 8.
        unsafe {
            release(at);
            assert_eq!(control[2], 1);
            release(at);
            assert_eq!(control[2], 1);
            release(0);
        }
    }

    #[test]
    fn a_node_keeps_the_first_stack_that_was_noted_for_it() {
        let (node, thread) = (4_711, 99);
        assert_eq!(noted(node, thread), 0);
        note(node, thread, 5);
        // Another thread has used the entry of `LAST` meanwhile: the same number is seen again.
        note(node, thread, 6);
        assert_eq!(noted(node, thread), 5);
        let (next_in_entry, other_thread) = (node + GRAPH_NODES_MAX as u64, thread + 1);
        assert_eq!((noted(next_in_entry, thread), noted(node, other_thread)), (0, 0));
        note(next_in_entry, thread, 7);
        assert_eq!((noted(next_in_entry, thread), noted(node, thread)), (7, 0));
        note(NO_NUMBER, thread, 8);
        assert_eq!(noted(NO_NUMBER, thread), 0);
    }

    #[test]
    fn nodes_are_distinguished_by_number_and_thread() {
        assert_ne!(mark(1, 1), mark(1 + GRAPH_NODES_MAX as u64, 1));
        assert_ne!(mark(1, 1), mark(1, 2));
        assert!(mark(u64::MAX - 1, 7) <= u64::from(u32::MAX));
    }
}
