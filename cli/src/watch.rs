//! `--watch`: the answer of a command again and again, until Ctrl-C.
//!
//! On a terminal each answer is drawn in the place of the one before; elsewhere they follow each
//! other. A coordinator that goes away is waited for. Ctrl-C is the end that the user wants: the
//! exit code is 0.

use std::io::{IsTerminal, Write};
use std::time::Duration;

use crate::clock;
use crate::output;
use crate::render::palette::Meaning;
use crate::render::units::plural;
use crate::runtime;
use memtape_core::settings::duration;

/// Shorter times are taken for this one: the coordinator has other work.
const INTERVAL_MIN: Duration = Duration::from_millis(200);

/// `--watch` of the lists.
#[derive(Debug, clap::Args)]
pub(crate) struct Watch {
    /// Show the list again after this time, until Ctrl-C [default without SECONDS: 2].
    #[arg(
        long,
        value_name = "SECONDS",
        num_args = 0..=1,
        default_missing_value = "2",
        value_parser = duration
    )]
    watch: Option<Duration>,
}

impl Watch {
    /// Prints the answer, once or until Ctrl-C.
    /// Fails when the first answer does, or stdout cannot be written.
    pub(crate) fn print(
        &self,
        mut answer: impl FnMut() -> anyhow::Result<String>,
    ) -> anyhow::Result<()> {
        let Some(interval) = self.watch else { return output::print(&answer()?) };
        let interval = interval.max(INTERVAL_MIN);
        let on_terminal = std::io::stdout().is_terminal();
        end_at_signal(if on_terminal { || println!() } else { || () });
        let mut is_first = true;
        loop {
            let text = match answer() {
                Ok(text) => text,
                Err(error) if is_first => return Err(error),
                Err(error) => {
                    let why = output::error_line(&error);
                    format!("{}\n", Meaning::Bad.paint(&format!("{why}; trying again")))
                }
            };
            if on_terminal {
                draw(&text, interval)?;
            } else {
                let gap = if is_first || text.starts_with('{') { "" } else { "\n" };
                output::print(&format!("{gap}{text}"))?;
            }
            is_first = false;
            std::thread::sleep(interval);
        }
    }
}

/// Draws the text from the top of the terminal, as far as it fits.
fn draw(text: &str, interval: Duration) -> anyhow::Result<()> {
    let (width, height) = crossterm::terminal::size().unwrap_or((80, 24));
    let seconds = interval.as_secs_f64();
    let title = format!("every {seconds} s; {} UTC; Ctrl-C ends", clock::utc(clock::wall_ns()));
    let text = output::wrapped(text, width.into());
    let lines = fitting(&text, usize::from(height).saturating_sub(3));
    let mut screen = format!("\u{1b}[H{}\u{1b}[K\r\n\u{1b}[K\r\n", Meaning::Dim.paint(&title));
    for line in lines {
        screen.push_str(&line);
        screen.push_str("\u{1b}[K\r\n");
    }
    screen.push_str("\u{1b}[J");
    let mut out = std::io::stdout().lock();
    out.write_all(screen.as_bytes())?;
    out.flush()?;
    Ok(())
}

/// The first lines, and how many more there are.
fn fitting(text: &str, height: usize) -> Vec<String> {
    let lines: Vec<&str> = text.lines().collect();
    if lines.len() <= height {
        return lines.into_iter().map(str::to_string).collect();
    }
    let shown = height.saturating_sub(1);
    let more = lines.len().saturating_sub(shown);
    let mut fitting: Vec<String> = lines.into_iter().take(shown).map(str::to_string).collect();
    fitting.push(format!("… {}", plural(more as u64, "more line")));
    fitting
}

/// Ends the process with exit code 0 at Ctrl-C or SIGTERM, also while an answer is awaited. Leaves
/// the terminal as `leave` does.
pub(crate) fn end_at_signal(leave: fn()) {
    runtime::at_signal(move || {
        leave();
        std::process::exit(0);
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_that_do_not_fit_are_counted() {
        assert_eq!(fitting("a\nb\nc\n", 3), ["a", "b", "c"]);
        assert_eq!(fitting("a\nb\nc\n", 2), ["a", "… 2 more lines"]);
        assert_eq!(fitting("a\n", 0), ["… 1 more line"]);
    }
}
