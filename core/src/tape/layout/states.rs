//! Whether CUPTI tells the recorder of driver calls, as the header of a tape has it.

/// What came of `MEMTAPE_CUPTI=1`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u64)]
pub enum Cupti {
    /// Nobody asked for it.
    NotAsked = 0,
    /// Driver calls that take memory are recorded; profilers of the process see no kernels.
    Subscribed = 1,
    /// No CUPTI is loaded.
    NoLibrary = 2,
    /// The CUPTI that is loaded lacks a function.
    NoFunction = 3,
    /// A profiler is attached: CUPTI has one subscriber in a process.
    ProfilerAttached = 4,
    /// CUPTI refused for another reason.
    Failed = 5,
}

/// What it keeps from being recorded or seen, for a value of the header.
pub(super) fn limitation(word: u64) -> Option<&'static str> {
    let texts = [
        (Cupti::NotAsked, None),
        (Cupti::Subscribed, Some("no kernels in this process's profilers: MEMTAPE_CUPTI=1")),
        (Cupti::NoLibrary, Some("no driver calls: CUPTI is not loaded")),
        (Cupti::NoFunction, Some("no driver calls: this CUPTI has no callbacks")),
        (Cupti::ProfilerAttached, Some("no driver calls: a profiler is attached to CUPTI")),
        (Cupti::Failed, Some("no driver calls: CUPTI refused")),
    ];
    let known = texts.into_iter().find(|(of, _)| *of as u64 == word);
    known.map_or(Some("no driver calls: a reason this version does not know"), |(_, text)| text)
}
