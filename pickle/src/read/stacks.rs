//! Which frames of PyTorch's snapshots are Python, as far as their names tell.

/// Endings of files that hold no Python.
const FOREIGN_ENDINGS: [&str; 9] = [".cpp", ".cc", ".c", ".h", ".hpp", ".cu", ".cuh", ".so", "??"];

/// Is this a frame of Python code?
pub(crate) fn is_python(file: &str, function: &str) -> bool {
    let is_foreign = file.is_empty() || FOREIGN_ENDINGS.iter().any(|ending| file.ends_with(ending));
    !is_foreign && !function.contains("::")
}

/// `AddmmBackward0` of `torch::autograd::generated::AddmmBackward0::apply(…)`.
pub(crate) fn backward_node(name: &str) -> Option<&str> {
    let is_part = |c: char| !c.is_ascii_alphanumeric() && c != '_';
    name.split(is_part).find(|part| {
        let (node, number) =
            part.split_at(part.trim_end_matches(|c: char| c.is_ascii_digit()).len());
        node.len() > "Backward".len() && node.ends_with("Backward") && !number.is_empty()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn backward_nodes_are_found_in_names() {
        let check = |name: &str, expected: Option<&str>| assert_eq!(backward_node(name), expected);
        check(
            "torch::autograd::generated::AddmmBackward0::apply(std::vector<>&&)",
            Some("AddmmBackward0"),
        );
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
        check("", "", false);
    }
}
