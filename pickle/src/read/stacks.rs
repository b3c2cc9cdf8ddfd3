//! Which frames of PyTorch's snapshots are Python, as far as their names tell.

/// Endings of files that hold no Python: sources of C, C++ and assembler, and object files.
const FOREIGN_ENDINGS: [&str; 15] = [
    ".cpp", ".cc", ".cxx", ".c", ".h", ".hpp", ".inl", ".tcc", ".cu", ".cuh", ".S", ".s", ".o",
    ".so", "??",
];

/// Nodes of the backward pass that are not made for one operator.
const OTHER_NODES: [&str; 3] = ["AccumulateGrad", "CopySlices", "CopyBackwards"];

/// What runs the backward pass, and the name of what has no node below it.
const ENGINE: (&str, &str) = ("torch::autograd::Engine", "autograd");

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
