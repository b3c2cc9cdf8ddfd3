//! Reads another library's thread-specific value under a pthread key, without a call to it.
//!
//! CPython keeps its thread state so: asking for it costs three calls through three tables, to read
//! one word of the thread's own control block. So the recorder finds that word, once, on a thread
//! that has a state:
//!
//! 1. Several keys may hold the state: extension modules keep it under keys of their own. Python's
//!    key is the one that, emptied for some nanoseconds, makes Python say that there is no state.
//!    No other code sees that: the value is this thread's, and its signals are blocked.
//! 2. The word is the only one of the control block that was empty then.
//!
//! A value counts only with the number of its key's use, as in glibc: values of a library that
//! owned the key before may still be there. On other systems than glibc for x86-64, for keys beyond
//! the first 32, and for states that are under no key, nothing is found, and the function is
//! called each time.

use std::ffi::c_void;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use crate::host::threads::Signals;

/// Keys whose values are in the control block itself.
const KEYS_NEAR: libc::pthread_key_t = 32;

/// Words of a control block that may hold the same state.
const WORDS_MAX: usize = 16;

/// Bytes of one slot: the number of the key's use, and the value.
const SLOT_BYTES: usize = 16;

/// Bytes of a control block that are searched; glibc's are longer, and have the slots at 0x310.
const BLOCK_BYTES: usize = 2048;

/// The place of one key's values.
pub(crate) struct ThreadSlot {
    /// Bytes from a thread's control block to the number before the value; 0 is not known.
    offset: AtomicUsize,
    /// The number of the key's present use.
    turn: AtomicU64,
}

impl ThreadSlot {
    pub(crate) const fn new() -> Self {
        Self { offset: AtomicUsize::new(0), turn: AtomicU64::new(0) }
    }

    /// The calling thread's value, null where it has none; `None` if the location is unknown.
    #[inline(always)]
    pub(crate) fn get(&self) -> Option<usize> {
        // In the order in which `find` wrote them.
        let offset = self.offset.load(Ordering::Acquire);
        if offset == 0 {
            return None;
        }
        let [turn, value] = own::slot(offset);
        Some(if turn as u64 == self.turn.load(Ordering::Relaxed) { value } else { 0 })
    }

    /// Finds where the value lies that `current` returns. It must be the calling thread's value of
    /// one key.
    #[cold]
    pub(crate) fn find(&self, current: impl Fn() -> *mut c_void) {
        let value = current();
        if value.is_null() {
            return;
        }
        let holds = |key: &libc::pthread_key_t| {
            // SAFETY: asks for this thread's value; a key that is not in use has none.
            unsafe { libc::pthread_getspecific(*key) == value }
        };
        let offset = (0..KEYS_NEAR).filter(holds).find_map(|key| offset_of(key, value, &current));
        if let Some(offset) = offset {
            self.turn.store(own::slot(offset)[0] as u64, Ordering::Relaxed);
            self.offset.store(offset, Ordering::Release);
        }
    }
}

/// Offset of a key's value, if `current` returns null while the key is empty.
fn offset_of(
    key: libc::pthread_key_t,
    value: *mut c_void,
    current: impl Fn() -> *mut c_void,
) -> Option<usize> {
    let is = |offset: usize, value: *mut c_void| own::slot(offset)[1] == value as usize;
    let mut full = [0; WORDS_MAX];
    let mut count = 0;
    for offset in (0..BLOCK_BYTES).step_by(SLOT_BYTES).filter(|&offset| is(offset, value)) {
        *full.get_mut(count)? = offset;
        count += 1;
    }
    let full = full.get(..count)?;
    // The value is put back before anything else of this thread runs, since its signals wait.
    let offset = Signals::all().blocked(|| {
        // SAFETY: this thread's own value of a key.
        let is_set = unsafe { libc::pthread_setspecific(key, std::ptr::null()) } == 0;
        let is_it = is_set && current().is_null();
        let mut emptied = full.iter().copied().filter(|&at| is(at, std::ptr::null_mut()));
        let only = emptied.next().filter(|_| is_it && emptied.next().is_none());
        // SAFETY: as above.
        unsafe { libc::pthread_setspecific(key, value) };
        only
    })?;
    (offset > 0 && is(offset, value) && current() == value).then_some(offset)
}

/// The calling thread's control block.
#[cfg(all(target_arch = "x86_64", target_env = "gnu"))]
mod own {
    /// Two words of a control block.
    #[inline(always)]
    pub(super) fn slot(offset: usize) -> [usize; 2] {
        let (first, second);
        // SAFETY: within the block, which every thread has; it is read only.
        unsafe {
            std::arch::asm!(
                "mov {first}, fs:[{offset}]",
                "mov {second}, fs:[{offset} + 8]",
                first = out(reg) first,
                second = lateout(reg) second,
                offset = in(reg) offset,
                options(pure, readonly, nostack),
            );
        }
        [first, second]
    }
}

#[cfg(not(all(target_arch = "x86_64", target_env = "gnu")))]
mod own {
    /// A value that is never searched for.
    pub(super) fn slot(_offset: usize) -> [usize; 2] {
        [0, 0]
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use super::*;

    fn new_key() -> libc::pthread_key_t {
        let mut key = 0;
        // SAFETY: the place is this function's own.
        assert_eq!(unsafe { libc::pthread_key_create(&raw mut key, None) }, 0);
        key
    }

    fn set(key: libc::pthread_key_t, value: usize) {
        // SAFETY: a key of these tests.
        assert_eq!(unsafe { libc::pthread_setspecific(key, value as *const c_void) }, 0);
    }

    fn get(key: libc::pthread_key_t) -> *mut c_void {
        // SAFETY: a key of these tests.
        unsafe { libc::pthread_getspecific(key) }
    }

    #[cfg(target_arch = "x86_64")]
    #[test]
    fn a_value_is_found_among_others_that_are_the_same_and_read_on_every_thread() {
        let (decoy, key, other) = (new_key(), new_key(), new_key());
        [decoy, key, other].into_iter().for_each(|each| set(each, 0x1000));
        let slot = ThreadSlot::new();
        slot.find(|| get(key));
        assert_eq!(slot.get(), Some(0x1000));
        assert_eq!([decoy, key, other].map(|each| get(each) as usize), [0x1000; 3], "put back");
        set(decoy, 1);
        set(other, 2);
        assert_eq!(slot.get(), Some(0x1000));
        std::thread::scope(|scope| {
            for thread in 1..5 {
                let slot = &slot;
                scope.spawn(move || {
                    assert_eq!(slot.get(), Some(0), "nothing yet");
                    set(decoy, 3);
                    for value in (0..100).map(|value| value << 8 | thread) {
                        set(key, value);
                        assert_eq!(slot.get(), Some(value));
                    }
                    set(key, 0);
                    assert_eq!(slot.get(), Some(0));
                });
            }
        });
        assert_eq!(slot.get(), Some(0x1000));
    }

    /// A thread's value under a deleted key does not belong to the key's next owner.
    #[cfg(target_arch = "x86_64")]
    #[test]
    fn values_of_an_earlier_owner_of_the_key_are_not_believed() {
        let before = new_key();
        let ((say, hear), (go, wait)) = (channel(), channel());
        let slot = std::sync::Arc::new(ThreadSlot::new());
        let shown = slot.clone();
        let thread = std::thread::spawn(move || {
            set(before, 0xdead);
            say.send(()).expect("the test waits");
            wait.recv().expect("the test goes on");
            shown.get()
        });
        hear.recv().expect("the thread is there");
        // SAFETY: a key of this test.
        unsafe { libc::pthread_key_delete(before) };
        let after = new_key();
        set(after, 0x2000);
        slot.find(|| get(after));
        assert_eq!(slot.get(), Some(0x2000));
        go.send(()).expect("the thread waits");
        assert_eq!(thread.join().expect("it did not panic"), Some(0), "key {before}, then {after}");
    }

    #[test]
    fn a_value_that_is_under_no_key_is_not_found() {
        let slot = ThreadSlot::new();
        slot.find(|| 0x3000 as *mut c_void);
        assert_eq!(slot.get(), None);
        slot.find(std::ptr::null_mut);
        assert_eq!(slot.get(), None);
    }
}
