//! Switches in the environment (`MEMTAPE_…`).

/// True when an environment variable switches something on.
pub(crate) fn is_on(name: &str) -> bool {
    switch(name) == Some(true)
}

/// Value of an environment variable that is a switch; `None` when it is not set.
pub(crate) fn switch(name: &str) -> Option<bool> {
    let value = std::env::var_os(name).filter(|value| !value.is_empty())?;
    let is = |word| value.eq_ignore_ascii_case(word);
    Some(!["0", "false", "off", "no"].into_iter().any(is))
}
