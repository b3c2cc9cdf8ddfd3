//! `memtape top`: the jobs, ranks and lines of a coordinator on one screen that keeps up.
//!
//! `model.rs` is the state and what keys do; `view.rs` draws it; `fetch.rs` asks the coordinator on
//! a thread of its own. This file has the terminal: it turns keys into events and draws after each.

mod fetch;
mod model;
#[cfg(test)]
mod samples;
mod view;

use std::io::IsTerminal;
use std::sync::mpsc;
use std::time::Duration;

use anyhow::{Context, bail};
use crossterm::event::{self, KeyCode, KeyEventKind, KeyModifiers};

use crate::clock;
use crate::globals::Globals;
use crate::terminal;
use crate::watch;
use memtape_core::settings::duration;
use model::{Event, Model, Wanted};
use view::View;

/// Keys are looked at this often, and answers are drawn.
const POLL_TIME: Duration = Duration::from_millis(50);

/// The age of the newest answer is drawn again this often.
const DRAW_TIME: Duration = Duration::from_secs(1);

const INTERVAL_MIN: Duration = Duration::from_millis(200);

/// `memtape top`.
#[derive(Debug, clap::Args)]
pub(crate) struct TopArgs {
    /// Begin with the ranks of this job [default: all jobs].
    #[arg(value_name = "JOB")]
    pub(crate) job: Option<String>,
    /// Time between two refreshes, such as 500ms or 5s.
    #[arg(long, value_name = "TIME", value_parser = duration, default_value = "2s")]
    pub(crate) interval: Duration,
}

/// Shows the screen until the user ends it. A coordinator that goes away is waited for.
/// Fails when there is no terminal, or the address of the coordinator makes no sense.
pub(crate) fn run(args: TopArgs, globals: &Globals) -> anyhow::Result<()> {
    let client = globals.client()?;
    if !std::io::stdout().is_terminal() || !std::io::stdin().is_terminal() {
        bail!("top needs a terminal: use `memtape jobs --watch` or `memtape ranks --json` instead");
    }
    let coordinator = client.base().to_string();
    let (wanted, wants) = mpsc::channel();
    let (events, happened) = mpsc::channel();
    let interval = args.interval.max(INTERVAL_MIN);
    std::thread::spawn(move || fetch::run(&client, interval, &wants, &events));
    let mut terminal = ratatui::try_init().context("cannot use this terminal")?;
    watch::end_at_signal(ratatui::restore);
    let screen = Screen { wanted, happened, coordinator };
    let ended = screen.show(Model::new(args.job), &mut terminal);
    ratatui::restore();
    ended
}

struct Screen {
    wanted: mpsc::Sender<Wanted>,
    happened: mpsc::Receiver<Event>,
    coordinator: String,
}

impl Screen {
    fn show(
        &self,
        mut model: Model,
        terminal: &mut ratatui::DefaultTerminal,
    ) -> anyhow::Result<()> {
        let mut asked = Wanted::default();
        let mut drawn = None;
        while !model.is_over {
            let mut has_changed = false;
            while let Ok(event) = self.happened.try_recv() {
                model.update(event);
                has_changed = true;
            }
            if model.wanted() != asked {
                asked = model.wanted();
                self.wanted.send(asked.clone()).context("the thread that asks has ended")?;
            }
            if has_changed || drawn.is_none_or(|at: std::time::Instant| at.elapsed() >= DRAW_TIME) {
                let view = View {
                    model: &model,
                    coordinator: &self.coordinator,
                    now_ns: clock::wall_ns(),
                    is_coloured: terminal::is_coloured(),
                };
                terminal.draw(|frame| view.draw(frame))?;
                drawn = Some(std::time::Instant::now());
            }
            if event::poll(POLL_TIME)? {
                match event::read()? {
                    event::Event::Key(key) if key.kind != KeyEventKind::Release => {
                        if let Some(event) = pressed(key) {
                            model.update(event);
                        }
                    }
                    _ => {}
                }
                drawn = None;
            }
        }
        Ok(())
    }
}

/// What a key does to the program; no key with Ctrl but Ctrl-C does anything.
fn pressed(key: event::KeyEvent) -> Option<Event> {
    match (key.code, key.modifiers.contains(KeyModifiers::CONTROL)) {
        (KeyCode::Char('c'), true) => Some(Event::Interrupt),
        (KeyCode::Char(_), true) => None,
        (code, _) => Some(Event::Key(code)),
    }
}
