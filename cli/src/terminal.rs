//! The terminal that stdout is, if it is one: its width, and whether text is coloured.
//!
//! Both are decided once, at the start of the program; until then text is plain and of any width,
//! as in tests. Text is made elsewhere, in `render/`.

use std::io::IsTerminal;
use std::sync::OnceLock;

use clap::ColorChoice;

/// Narrower terminals are written as if they had this width.
const WIDTH_MIN: usize = 40;

#[derive(Clone, Copy, Debug, Default)]
struct Terminal {
    is_coloured: bool,
    width: Option<usize>,
}

static TERMINAL: OnceLock<Terminal> = OnceLock::new();

/// Decides for the rest of the program, by `--color`, the environment and what stdout is.
/// JSON is never wrapped or coloured.
pub(crate) fn decide(color: ColorChoice, json: bool) {
    let is_terminal = std::io::stdout().is_terminal();
    let set = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty());
    let is_forced = set("CLICOLOR_FORCE").is_some_and(|value| value != "0");
    let is_off = set("NO_COLOR").is_some() || set("TERM").is_some_and(|term| term == "dumb");
    let is_coloured = match color {
        ColorChoice::Always => true,
        ColorChoice::Never => false,
        ColorChoice::Auto => is_forced || (is_terminal && !is_off),
    };
    let columns = set("COLUMNS").and_then(|text| text.to_str()?.parse().ok());
    let width = columns.or_else(|| crossterm::terminal::size().ok().map(|(width, _)| width.into()));
    let terminal = Terminal {
        is_coloured: is_coloured && !json,
        width: width.filter(|_| is_terminal && !json).map(|width: usize| width.max(WIDTH_MIN)),
    };
    // Else crossterm looks at NO_COLOR too.
    crossterm::style::force_color_output(terminal.is_coloured);
    // A second decision changes nothing.
    let _ = TERMINAL.set(terminal);
}

/// True when text may have colours.
pub(crate) fn is_coloured() -> bool {
    TERMINAL.get().is_some_and(|terminal| terminal.is_coloured)
}

/// The columns of the terminal; none when stdout is none, and text is not cut.
pub(crate) fn width() -> Option<usize> {
    TERMINAL.get().and_then(|terminal| terminal.width)
}
