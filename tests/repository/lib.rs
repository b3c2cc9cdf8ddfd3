//! Rules of the repository that neither the compiler nor clippy can check.
//!
//! Each rule gives a list of `place: what to do` lines, and holds when the list is empty. The
//! parsers here are as simple as the formatted sources allow; each rule is also tried on a piece
//! of text that breaks it, so that a rule that sees nothing is noticed.

#[cfg(test)]
mod book;
#[cfg(test)]
mod circles;
#[cfg(test)]
mod documents;
#[cfg(test)]
mod examples;
#[cfg(test)]
mod imports;
#[cfg(test)]
mod shape;
#[cfg(test)]
mod size;
#[cfg(test)]
mod source;
#[cfg(test)]
mod words;
