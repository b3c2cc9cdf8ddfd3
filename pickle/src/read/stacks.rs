//! Frames and stacks of PyTorch's snapshots, each once, and which frames are Python, as far as
//! their names tell.

use alloc::collections::BTreeMap;
use alloc::string::{String, ToString};
use alloc::vec;
use alloc::vec::Vec;

use memtape_tape::snapshot::Frame;

use crate::read::opcodes as opcode;
use crate::read::value::{Heap, Record, Slot, Value};

/// Maximum frames of a list that is known to be whole: picklers write longer lists in parts of
/// 1,000 items.
const WHOLE_FRAMES_MAX: usize = 512;

/// Minimum frames of such a list: a pickler may append single items one after the other.
const WHOLE_FRAMES_MIN: usize = 2;

/// Lists of frames that are found by their bytes.
const RECALLED_LISTS: usize = 1 << 12;

/// Endings of files that hold no Python: sources of C, C++ and assembler, and object files.
const FOREIGN_ENDINGS: [&str; 15] = [
    ".cpp", ".cc", ".cxx", ".c", ".h", ".hpp", ".inl", ".tcc", ".cu", ".cuh", ".S", ".s", ".o",
    ".so", "??",
];

/// Nodes of the backward pass that are not made for one operator.
const OTHER_NODES: [&str; 3] = ["AccumulateGrad", "CopySlices", "CopyBackwards"];

/// What runs the backward pass, and the name of what has no node below it.
const ENGINE: (&str, &str) = ("torch::autograd::Engine", "autograd");

/// A frame as the file has it.
#[derive(Debug)]
struct LoadedFrame {
    /// Text of the function's name.
    name: Option<u32>,
    /// Number of the frame among Python's frames.
    python: Option<u32>,
}

/// The frames and stacks so far.
#[derive(Debug)]
pub(crate) struct Stacks {
    /// Frames of Python; number 0 is the unknown one.
    pub(crate) frames: Vec<Frame>,
    /// Stacks of Python; number 0 is the empty one.
    pub(crate) stacks: Vec<Vec<u32>>,
    /// Items of lists of frames that are no frames.
    pub(crate) strays: u64,
    loaded_frames: Vec<LoadedFrame>,
    loaded_numbers: BTreeMap<[Option<u32>; 3], u32>,
    stack_numbers: BTreeMap<Vec<u32>, u32>,
    node_numbers: BTreeMap<String, u32>,
    /// Lists of frames that need not be read again.
    pub(crate) recalled: RecalledLists,
}

impl Stacks {
    pub(crate) fn new() -> Self {
        Self {
            frames: vec![Frame::default()],
            stacks: vec![Vec::new()],
            strays: 0,
            loaded_frames: Vec::new(),
            loaded_numbers: BTreeMap::new(),
            stack_numbers: BTreeMap::from([(Vec::new(), 0)]),
            node_numbers: BTreeMap::new(),
            recalled: RecalledLists::default(),
        }
    }

    /// Number of the frame of this name, file (both texts of the heap) and line. Equal frames are
    /// one.
    pub(crate) fn frame(&mut self, heap: &Heap, parts: [Option<u32>; 3]) -> u32 {
        if let Some(&known) = self.loaded_numbers.get(&parts) {
            return known;
        }
        let [name, file, line] = parts;
        let text = |number: Option<u32>| number.map_or("", |number| heap.text(number));
        let python = is_python(text(file), text(name)).then(|| {
            self.push_frame(Frame {
                file: text(file).to_string(),
                line: line.unwrap_or_default(),
                function: text(name).to_string(),
            })
        });
        let number = self.loaded_frames.len() as u32;
        self.loaded_frames.push(LoadedFrame { name, python });
        self.loaded_numbers.insert(parts, number);
        number
    }

    fn push_frame(&mut self, frame: Frame) -> u32 {
        self.frames.push(frame);
        (self.frames.len() - 1) as u32
    }

    /// Number of the stack that a list of frames makes; none for a value that is no list.
    pub(crate) fn stack(&mut self, heap: &mut Heap, list: Value) -> Option<u32> {
        let number = list.object()?;
        match heap.slot(number) {
            Slot::Stack(stack) => Some(stack),
            Slot::EmptyList => Some(0),
            slot @ (Slot::List(_) | Slot::Tuple(_)) => {
                let stack = self.stack_of(heap, heap.items(slot));
                heap.replace(number, Slot::Stack(stack));
                Some(stack)
            }
            // Another record stands between the frames.
            Slot::Records(list) => {
                let list = heap.list(list).filter(|list| !list.frames.is_empty())?;
                let stack = self.stack_of_frames(heap, &list.frames);
                self.strays += list.len().saturating_sub(list.frames.len() as u64);
                heap.set(number, Slot::Stack(stack));
                Some(stack)
            }
            _ => None,
        }
    }

    /// The stack of a whole list of frames; none for other items, which `stack` makes something of
    /// when a record uses the list.
    pub(crate) fn whole_list(&mut self, heap: &Heap, items: &[Value]) -> Option<u32> {
        let is_short = (WHOLE_FRAMES_MIN..=WHOLE_FRAMES_MAX).contains(&items.len());
        let is_whole = is_short && items.iter().all(|item| frame_of(heap, item).is_some());
        is_whole.then(|| self.stack_of(heap, items))
    }

    fn stack_of(&mut self, heap: &Heap, items: &[Value]) -> u32 {
        let loaded: Vec<u32> = items.iter().filter_map(|item| frame_of(heap, item)).collect();
        self.strays += (items.len() - loaded.len()) as u64;
        self.stack_of_frames(heap, &loaded)
    }

    /// Makes a stack of frames. With `stacks="all"` PyTorch writes C++ frames, too, which are equal
    /// for all allocations, so they are left out. A stack without Python frames, as in autograd's
    /// threads, gets the name of the backward node instead.
    fn stack_of_frames(&mut self, heap: &Heap, loaded: &[u32]) -> u32 {
        let of = |&frame: &u32| self.loaded_frames.get(frame as usize);
        let mut frames: Vec<u32> = loaded.iter().filter_map(|frame| of(frame)?.python).collect();
        if frames.is_empty() {
            let name = |frame: &u32| Some(heap.text(of(frame)?.name?));
            let node = backward_node(loaded.iter().filter_map(name)).map(String::from);
            frames.extend(node.map(|node| self.node(node)));
        }
        if let Some(&known) = self.stack_numbers.get(&frames) {
            return known;
        }
        let number = self.stacks.len() as u32;
        self.stacks.push(frames.clone());
        self.stack_numbers.insert(frames, number);
        number
    }

    fn node(&mut self, function: String) -> u32 {
        if let Some(&known) = self.node_numbers.get(&function) {
            return known;
        }
        let number = self.push_frame(Frame { function: function.clone(), ..Frame::default() });
        self.node_numbers.insert(function, number);
        number
    }
}

/// Number of the frame that a value is.
fn frame_of(heap: &Heap, value: &Value) -> Option<u32> {
    match heap.slot(value.object()?) {
        Slot::Record(Record::Frame, frame) => Some(frame),
        _ => None,
    }
}

/// Lists of frames by the bytes that recall the frames from the memo. Most events of a trace have a
/// list of their own with the frames of another one.
#[derive(Debug, Default)]
pub(crate) struct RecalledLists {
    /// Bytes and stack, by a hash of the bytes.
    lists: Vec<(Vec<u8>, u32)>,
    /// Bytes of the list that is being read.
    missed: Vec<u8>,
}

impl RecalledLists {
    /// The bytes behind a mark up to the end of its list, if they only recall as many values as a
    /// whole list may have, and the number of the values.
    pub(crate) fn bytes_in(piece: &[u8]) -> Option<(&[u8], usize)> {
        let (mut at, mut count) = (0, 0);
        while count <= WHOLE_FRAMES_MAX {
            match *piece.get(at)? {
                opcode::LONG_BINGET => at += 5,
                opcode::BINGET => at += 2,
                opcode::APPENDS if count >= WHOLE_FRAMES_MIN => {
                    return Some((piece.get(..at)?, count));
                }
                _ => return None,
            }
            count += 1;
        }
        None
    }

    /// The stack of the list with these bytes; none for a list that was not seen lately.
    pub(crate) fn find(&mut self, bytes: &[u8]) -> Option<u32> {
        let found = self.lists.get(index_of(bytes)).filter(|(list, _)| list == bytes);
        let found = found.map(|&(_, stack)| stack);
        if found.is_none() {
            self.missed.clear();
            self.missed.extend_from_slice(bytes);
        }
        found
    }

    /// Keeps the stack of the list that was not found; none where it is no list of frames.
    pub(crate) fn keep(&mut self, stack: Option<u32>) {
        if self.missed.is_empty() {
            return;
        }
        self.lists.resize(RECALLED_LISTS, (Vec::new(), 0));
        if let (Some(stack), Some(list)) = (stack, self.lists.get_mut(index_of(&self.missed))) {
            list.0.clone_from(&self.missed);
            list.1 = stack;
        }
        self.missed.clear();
    }
}

/// Index of the list with these bytes.
fn index_of(bytes: &[u8]) -> usize {
    let add = |hash: u64, part: u64| (hash ^ part).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    let (words, rest) = bytes.as_chunks();
    let hash = words.iter().fold(0, |hash, &word| add(hash, u64::from_le_bytes(word)));
    let hash = rest.iter().fold(hash, |hash, &byte| add(hash, u64::from(byte)));
    (hash >> 32) as usize % RECALLED_LISTS
}

/// Is this a frame of Python code?
pub(crate) fn is_python(file: &str, function: &str) -> bool {
    let is_foreign = file.is_empty()
        || file.contains(".so.")
        || FOREIGN_ENDINGS.iter().any(|ending| file.ends_with(ending));
    !is_foreign && !function.contains("::")
}

/// The node of the backward pass that a stack of C++ runs, by the names of its functions:
/// `AddmmBackward0` of `torch::autograd::generated::AddmmBackward0::apply(…)`. None outside of
/// autograd.
pub(crate) fn backward_node<'n>(names: impl Iterator<Item = &'n str> + Clone) -> Option<&'n str> {
    let mut nodes = names.clone().filter_map(node_in);
    nodes.next().or_else(|| {
        let (engine, name) = ENGINE;
        names.clone().any(|function| function.contains(engine)).then_some(name)
    })
}

fn node_in(function: &str) -> Option<&str> {
    let is_part = |c: char| !c.is_ascii_alphanumeric() && c != '_';
    function.split(is_part).find(|part| {
        let (node, number) =
            part.split_at(part.trim_end_matches(|c: char| c.is_ascii_digit()).len());
        let is_of_operator = node.len() > "Backward".len() && node.ends_with("Backward");
        (is_of_operator && !number.is_empty()) || OTHER_NODES.contains(part)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn backward_nodes_are_found_in_names() {
        let check = |name: &str, expected: Option<&str>| {
            assert_eq!(backward_node(["at::empty", name].into_iter()), expected);
        };
        check(
            "torch::autograd::generated::AddmmBackward0::apply(std::vector<>&&)",
            Some("AddmmBackward0"),
        );
        check("torch::autograd::AccumulateGrad::apply(…)", Some("AccumulateGrad"));
        check("torch::autograd::CopySlices::apply_impl(…)", Some("CopySlices"));
        check("torch::autograd::Engine::evaluate_function(…)", Some("autograd"));
        check("torch::autograd::Node::operator()", None);
        check("PyFunctionBackward", None);
        check("", None);
    }

    #[test]
    fn cpp_frames_are_not_python_frames() {
        let check = |file: &str, name: &str, expected: bool| {
            assert_eq!(is_python(file, name), expected, "{file} {name}");
        };
        check("/app/train.py", "step", true);
        check("<ipython-input-3-a>", "<module>", true);
        check("??", "c10::cuda::CUDACachingAllocator::allocate", false);
        check("/pytorch/c10/core/Allocator.cpp", "c10::Allocator::get", false);
        check("thread.o", "execute_native_thread_routine", false);
        check("../sysdeps/unix/sysv/linux/x86_64/clone3.S", "clone3", false);
        check("/usr/lib/libc.so.6", "start_thread", false);
        check("/usr/bin/torchrun", "<module>", true);
        check("", "", false);
    }
}
