//! Reading a tape from outside, dead or alive, trusting nothing on it.
//!
//! [`Tape::open`] checks the header once and keeps the offsets of all regions; everything else is
//! read again at each call. Numbers from the tape are data, never indexes, until they have been
//! checked. Rewinding is in `rewind/`.

use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec;
use alloc::vec::Vec;

use crate::event::Event;
use crate::identity::planned_end::PlannedEnd;
use crate::identity::{Identity, cut};
use crate::interned::stacks::Interned;
use crate::interned::stream_pools;
use crate::layout::header::{descriptor, device};
use crate::layout::regions::LaneLayout;
use crate::layout::sizes::{
    CURSOR_MAX, HEADER_WORDS, IDENTITY_WORDS, LANES, MAGIC, SLOT_WORDS, STEP_WORDS,
    STREAM_POOL_WORDS, STREAM_POOLS_MAX, VERSION,
};
use crate::layout::states::Tracker;
use crate::layout::{head, header};
use crate::limits::{
    ALLOCATOR_SETTINGS_BYTES_MAX, COMMAND_BYTES_MAX, DEVICES_MAX, NAME_BYTES_MAX,
    RANKS_PER_JOB_MAX, ROLE_BYTES_MAX, TAPE_BYTES_MAX, TAPE_ITEMS_MAX,
};
use crate::read::source::Source;
use crate::redaction::Redaction;
use crate::snapshot::StreamPool;
use crate::visible::escaped;

/// Why a file is not a tape that can be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TapeError {
    /// The first word is not the magic.
    #[error("not a tape: the file does not begin with MEMTAPE")]
    NotATape,
    /// The first word is still zero: the process is making the tape now, or died doing so.
    #[error("the tape is not complete yet: its process is still making it, or died doing so")]
    Unfinished,
    /// The layout has another version.
    #[error("tape version {0} cannot be read, only version {VERSION}: use the memtape of the job")]
    Version(u64),
    /// The file is shorter than its own header states.
    #[error("the tape is cut short: {have} of {want} bytes")]
    Truncated {
        /// Bytes there are.
        have: u64,
        /// Bytes there should be.
        want: u64,
    },
    /// A field makes no sense.
    #[error("the tape is damaged: {0}")]
    Damaged(&'static str),
}

/// Totals of one device, as the allocator reported them last.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DeviceTotals {
    /// Device index.
    pub device: u8,
    /// Bytes handed out.
    pub allocated: u64,
    /// Bytes held from the device.
    pub reserved: u64,
    /// Most bytes ever handed out.
    pub peak_allocated: u64,
    /// Live blocks in the table.
    pub blocks: u64,
    /// Bytes of these blocks.
    pub live_bytes: u64,
    /// Blocks handed out since the start.
    pub allocs: u64,
    /// Blocks taken back since the start.
    pub frees: u64,
    /// Requests that failed for good.
    pub ooms: u64,
    /// Failed `cudaMalloc` calls.
    pub malloc_failures: u64,
    /// Size of the device; 0 is unknown.
    pub device_bytes: u64,
    /// Bytes taken back that other streams still use; none where that is not recorded.
    pub deferred: Option<u64>,
}

/// A tape that passed its checks.
#[derive(Debug)]
pub struct Tape<S> {
    pub(crate) source: S,
    pub(crate) lanes: [Option<LaneLayout>; LANES],
    identity: Identity,
    boot_id: [u64; 2],
    stream_pools_at: usize,
    interned_at: usize,
    interned_words: usize,
    start_mono_ns: u64,
    pub(crate) start_wall_ns: i64,
    pub(crate) clock_error_ns: u64,
}

impl<S: Source> Tape<S> {
    /// Checks the header and takes the offsets of all regions.
    ///
    /// # Errors
    /// A [`TapeError`] that says in one line what is wrong.
    pub fn open(source: S) -> Result<Self, TapeError> {
        let have = source.len_bytes();
        let mut front = vec![0; HEADER_WORDS];
        if !source.read(0, &mut front[..1]) || (front[0] != MAGIC && front[0] != 0) {
            return Err(TapeError::NotATape);
        }
        if front[0] == 0 {
            return Err(TapeError::Unfinished);
        }
        if !source.read(0, &mut front) {
            return Err(TapeError::Truncated { have, want: (HEADER_WORDS * 8) as u64 });
        }
        let word = |index: usize| front.get(index).copied().unwrap_or(0);
        if word(header::VERSION) != VERSION {
            return Err(TapeError::Version(word(header::VERSION)));
        }
        let want = word(header::FILE_WORDS)
            .checked_mul(8)
            .filter(|&bytes| bytes <= TAPE_BYTES_MAX)
            .ok_or(TapeError::Damaged("its size makes no sense"))?;
        if have < want {
            return Err(TapeError::Truncated { have, want });
        }
        let file_words = index(word(header::FILE_WORDS))?;
        let interned_at = index(word(header::INTERNED_OFFSET))?;
        let interned_words = index(word(header::INTERNED_WORDS))?;
        let stream_pools_at = index(word(header::STREAM_POOLS_OFFSET))?;
        let stream_pools_end = stream_pools_at.checked_add(STREAM_POOLS_MAX * STREAM_POOL_WORDS);
        if stream_pools_at < HEADER_WORDS + IDENTITY_WORDS
            || stream_pools_end.is_none_or(|end| end > interned_at)
        {
            return Err(TapeError::Damaged("its streams and pools lie over another region"));
        }
        if interned_words > TAPE_ITEMS_MAX
            || interned_at.checked_add(interned_words).is_none_or(|end| end > file_words)
        {
            return Err(TapeError::Damaged("its interned entries lie outside of it"));
        }
        let lanes = read_lanes(word, interned_at + interned_words, file_words)?;
        let identity = read_identity(&source, word)?;
        if identity.rank >= RANKS_PER_JOB_MAX {
            return Err(TapeError::Damaged("its rank is beyond any real one"));
        }
        Ok(Self {
            lanes,
            identity,
            boot_id: [word(header::BOOT_ID), word(header::BOOT_ID + 1)],
            stream_pools_at,
            interned_at,
            interned_words,
            start_mono_ns: word(header::START_MONO_NS),
            start_wall_ns: i64::try_from(word(header::START_WALL_NS)).unwrap_or(0),
            clock_error_ns: word(header::CLOCK_ERROR_NS),
            source,
        })
    }

    /// Identity of the process that wrote the tape.
    pub fn identity(&self) -> &Identity {
        &self.identity
    }

    /// Boot id of the kernel under which the tape was made; zeros when it is not known.
    pub fn boot_id(&self) -> [u64; 2] {
        self.boot_id
    }

    /// Takes more secrets out of the command line of its identity.
    pub fn redact(&mut self, redaction: &Redaction) {
        self.identity.command = redacted(redaction, &self.identity.command);
    }

    /// Inode of the pid namespace that the identity's pid belongs to; 0 is unknown.
    pub fn pid_namespace(&self) -> u64 {
        self.word(header::PID_NAMESPACE)
    }

    /// Unix time of a CLOCK_MONOTONIC reading of the tape's node, in nanoseconds.
    pub fn wall_ns(&self, mono_ns: u64) -> i64 {
        let since = i128::from(mono_ns) - i128::from(self.start_mono_ns);
        i64::try_from(i128::from(self.start_wall_ns) + since).unwrap_or(0)
    }

    /// Devices that have a lane.
    pub fn devices(&self) -> Vec<u8> {
        (0..DEVICES_MAX).filter(|&lane| self.lane(lane).is_some()).map(|lane| lane as u8).collect()
    }

    /// UUIDs of the process's devices, as `GPU-xxxxxxxx-…`; left out where unknown.
    pub fn device_uuids(&self) -> Vec<(u8, String)> {
        let uuid = |device: u8| {
            let words = self.words::<2>(device_word(device, device::UUID))?;
            (words != [0, 0]).then(|| (device, format_uuid(words)))
        };
        self.devices().into_iter().filter_map(uuid).collect()
    }

    /// Present totals of each device.
    pub fn totals(&self) -> Vec<DeviceTotals> {
        let traced = self.word(header::TRACKER) == Tracker::Attached as u64;
        let of = |device: u8| {
            let lane = self.lane(usize::from(device))?;
            let words = self.words::<{ head::WORDS }>(lane.head)?;
            let info = self.words::<{ device::WORDS }>(device_word(device, 0))?;
            // Numbers beyond any real one would only make wrong sums.
            let (words, info) = (words.map(believable), info.map(believable));
            Some(DeviceTotals {
                device,
                allocated: words[head::ALLOCATED],
                reserved: words[head::RESERVED_BYTES],
                peak_allocated: words[head::PEAK_EVER],
                blocks: words[head::LIVE_BLOCKS],
                live_bytes: words[head::LIVE_BYTES],
                allocs: words[head::ALLOCS],
                frees: words[head::FREES],
                ooms: words[head::OOMS],
                malloc_failures: info[device::MALLOC_FAILURES],
                device_bytes: info[device::TOTAL_BYTES],
                deferred: traced.then_some(words[head::DEFERRED_BYTES]),
            })
        };
        self.devices().into_iter().filter_map(of).collect()
    }

    /// The newest events of a device, oldest first: at most `count`, and only whole ones.
    pub fn tail(&self, device: u8, count: usize) -> Vec<Event> {
        let Some(lane) = self.lane(usize::from(device)) else { return Vec::new() };
        let end = self.word(lane.head + head::RESERVED);
        let first = end.saturating_sub((count.min(lane.ring_slots)) as u64);
        self.events(&lane, first, end).into_iter().flatten().collect()
    }

    /// Number of events of a device that are whole on the tape or were before they were
    /// overwritten: the position after its newest one.
    pub fn tail_end(&self, device: u8) -> u64 {
        let Some(lane) = self.lane(usize::from(device)) else { return 0 };
        let end = self.word(lane.head + head::RESERVED);
        if end > CURSOR_MAX {
            return 0;
        }
        let whole = self.events(&lane, end.saturating_sub(1), end).iter().all(Option::is_some);
        if whole { end } else { end - 1 }
    }

    /// A word of the tape; 0 when it cannot be read any more.
    pub(crate) fn word(&self, at: usize) -> u64 {
        self.words::<1>(at).map_or(0, |[word]| word)
    }

    pub(crate) fn words<const N: usize>(&self, at: usize) -> Option<[u64; N]> {
        let mut out = [0; N];
        self.source.read(at, &mut out).then_some(out)
    }

    /// The lane, if it is open.
    pub(crate) fn lane(&self, index: usize) -> Option<LaneLayout> {
        let lane = (*self.lanes.get(index)?)?;
        let state = header::DESCRIPTORS + index * descriptor::WORDS + descriptor::STATE;
        (self.word(state) == 1).then_some(lane)
    }

    /// Words for interned entries.
    pub(crate) fn interned_words(&self) -> usize {
        self.interned_words
    }

    /// The interned entries that are complete now.
    pub fn interned(&self) -> Interned {
        let used = usize::try_from(self.word(header::INTERNED_USED)).unwrap_or(0);
        let mut words = vec![0; used.min(self.interned_words)];
        if !self.source.read(self.interned_at, &mut words) {
            words.clear();
        }
        Interned::new(words)
    }

    /// Streams and pools that are complete now; entry 0 is the unknown one.
    pub(crate) fn stream_pools(&self) -> Vec<StreamPool> {
        let used = (self.word(header::STREAM_POOLS_USED) as usize).min(STREAM_POOLS_MAX);
        let mut words = vec![0; used * STREAM_POOL_WORDS];
        let is_whole = self.source.read(self.stream_pools_at, &mut words);
        stream_pools::decode(if is_whole { &words } else { &[] })
    }

    /// Events with positions `first..end` of the lane; `None` for one that is not whole or gone.
    pub(crate) fn events(&self, lane: &LaneLayout, first: u64, end: u64) -> Vec<Option<Event>> {
        const CHUNK_SLOTS: u64 = 4096;
        if end > CURSOR_MAX {
            return Vec::new();
        }
        let count = end.saturating_sub(first).min(lane.ring_slots as u64);
        let mut events = Vec::with_capacity(count as usize);
        let steps_since_ns = self.word(header::STEPS_SINCE_NS);
        let mut words = Vec::new();
        let mut position = first;
        while position < first.saturating_add(count) {
            let slot = position as usize & (lane.ring_slots - 1);
            let run =
                (first + count - position).min(CHUNK_SLOTS).min((lane.ring_slots - slot) as u64);
            words.clear();
            words.resize(run as usize * SLOT_WORDS, 0);
            let whole = self.source.read(lane.ring + slot * SLOT_WORDS, &mut words);
            for (ticket, slot) in (position + 1..).zip(words.as_chunks::<SLOT_WORDS>().0) {
                let event = Event::decode(slot, ticket).filter(|_| whole);
                events.push(event.map(|event| event.in_steps(steps_since_ns)));
            }
            position += run;
        }
        events
    }
}

/// Clamps a number to its largest possible value: a larger one is damage.
pub fn believable(number: u64) -> u64 {
    number.min(CURSOR_MAX)
}

fn index(word: u64) -> Result<usize, TapeError> {
    usize::try_from(word).map_err(|_| TapeError::Damaged("an offset makes no sense"))
}

pub(crate) fn device_word(device: u8, word: usize) -> usize {
    header::DEVICES + usize::from(device) * device::WORDS + word
}

/// The layouts of all lanes, which must lie one behind the other after `free_from`.
fn read_lanes(
    word: impl Fn(usize) -> u64,
    mut free_from: usize,
    file_words: usize,
) -> Result<[Option<LaneLayout>; LANES], TapeError> {
    let mut lanes = [None; LANES];
    for (number, lane) in lanes.iter_mut().enumerate() {
        let first = header::DESCRIPTORS + number * descriptor::WORDS;
        let at = |name: usize| index(word(first + name));
        let layout = LaneLayout {
            head: at(descriptor::HEAD)?,
            ring: at(descriptor::RING)?,
            ring_slots: at(descriptor::RING_SLOTS)?,
            table: at(descriptor::TABLE)?,
            table_entries: at(descriptor::TABLE_ENTRIES)?,
            steps: at(descriptor::STEPS)?,
            step_records: at(descriptor::STEP_RECORDS)?,
            segments: at(descriptor::SEGMENTS)?,
            segment_entries: at(descriptor::SEGMENT_ENTRIES)?,
            end: file_words,
        };
        if !layout.is_sound(file_words) || layout.head < free_from {
            return Err(TapeError::Damaged("a lane lies outside of it or over another region"));
        }
        free_from = layout.steps + layout.step_records * STEP_WORDS;
        *lane = Some(layout);
    }
    Ok(lanes)
}

fn read_identity<S: Source>(
    source: &S,
    word: impl Fn(usize) -> u64,
) -> Result<Identity, TapeError> {
    let bytes = index(word(header::IDENTITY_BYTES))?.min(IDENTITY_WORDS * 8);
    let mut words = vec![0; bytes.div_ceil(8)];
    if !source.read(HEADER_WORDS, &mut words) {
        return Err(TapeError::Damaged("its identity cannot be read"));
    }
    let mut text: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    text.truncate(bytes);
    let text = String::from_utf8_lossy(&text);
    let field = |name: &str| {
        text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix('=')).unwrap_or_default()
    };
    let number = |name: &str| field(name).parse::<u32>().unwrap_or(0);
    let visible = |text: &str, bytes_max| cut(&escaped(text), bytes_max).to_string();
    let name = |key: &str| visible(field(key), NAME_BYTES_MAX);
    Ok(Identity {
        tape_id: format!(
            "{:08x}{:08x}{:016x}",
            (word(header::BOOT_ID) >> 32) as u32,
            word(header::PID) as u32,
            word(header::START_MONO_NS)
        ),
        job: Some(name("job"))
            .filter(|job| !job.trim().is_empty() && !job.contains(char::is_control))
            .unwrap_or_else(|| "unnamed".to_string()),
        role: Some(field("role"))
            .filter(|role| !role.contains(char::is_control))
            .map_or_else(String::new, |role| visible(role.trim(), ROLE_BYTES_MAX)),
        attempt: number("attempt"),
        rank: number("rank"),
        world_size: Some(number("world_size"))
            .filter(|&size| size <= RANKS_PER_JOB_MAX)
            .unwrap_or(0),
        local_rank: number("local_rank"),
        host: name("host"),
        pid: word(header::PID) as u32,
        // Whatever recorder wrote it: no reader of a tape meets the secrets that are known.
        command: redacted(&Redaction::default(), field("command")),
        allocator: text
            .lines()
            .any(|line| line.starts_with("allocator="))
            .then(|| visible(field("allocator"), ALLOCATOR_SETTINGS_BYTES_MAX)),
        hints: visible(field("hints"), ALLOCATOR_SETTINGS_BYTES_MAX),
        planned_end: PlannedEnd {
            ends_at_wall_ns: field("ends_at_wall_ns").parse().ok(),
            total_steps: field("total_steps").parse().ok(),
        },
    })
}

fn redacted(redaction: &Redaction, command: &str) -> String {
    let redacted = redaction.line(cut(command, COMMAND_BYTES_MAX));
    cut(&escaped(&redacted), COMMAND_BYTES_MAX).to_string()
}

/// The `key=value` lines for a tape's identity region.
pub fn identity_text(identity: &Identity) -> String {
    // A line break inside a value would start another key; other control characters are no part
    // of a name either.
    let one_line = |text: &str| text.replace(char::is_control, " ");
    let role = match one_line(&identity.role) {
        role if role.is_empty() => role,
        role => format!("role={role}\n"),
    };
    let allocator = match &identity.allocator {
        Some(settings) => format!("allocator={}\n", one_line(settings)),
        None => String::new(),
    };
    let hints = match one_line(&identity.hints) {
        hints if hints.is_empty() => hints,
        hints => format!("hints={hints}\n"),
    };
    format!(
        "{role}{allocator}{hints}{}job={}\nattempt={}\nrank={}\nworld_size={}\nlocal_rank={}\n\
         host={}\ncommand={}\n",
        identity.planned_end.lines(),
        one_line(&identity.job),
        identity.attempt,
        identity.rank,
        identity.world_size,
        identity.local_rank,
        one_line(&identity.host),
        one_line(&identity.command),
    )
}

/// A UUID the way NVIDIA's tools print it.
fn format_uuid([first, second]: [u64; 2]) -> String {
    let bytes: Vec<u8> = first.to_le_bytes().into_iter().chain(second.to_le_bytes()).collect();
    let mut text = String::from("GPU-");
    for (index, byte) in bytes.iter().enumerate() {
        if matches!(index, 4 | 6 | 8 | 10) {
            text.push('-');
        }
        text.push_str(&format!("{byte:02x}"));
    }
    text
}
