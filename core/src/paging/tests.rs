//! A table of ends, and how urgent growth with such an end is.

use super::*;

#[test]
fn the_end_decides_between_a_notice_a_ticket_and_a_page() {
    use Urgency::{Notice, Page, Ticket};
    let horizons = Horizons { page_seconds: 100, ticket_seconds: 200 };
    let in_seconds = End::InSeconds;
    let (unsure, shared, own) = ((false, true), (true, false), (true, true));
    for (growth, end, expected) in [
        (unsure, in_seconds(0), Notice),
        (unsure, End::Reached, Notice),
        (shared, in_seconds(100), Page),
        (shared, in_seconds(101), Ticket),
        (shared, in_seconds(200), Ticket),
        (shared, in_seconds(201), Notice),
        (shared, End::Unknown, Ticket),
        (shared, End::Reached, Page),
        (own, in_seconds(u64::MAX), Page),
        (own, End::Unknown, Page),
        (own, End::Reached, Page),
    ] {
        assert_eq!(horizons.urgency(growth, end), expected, "{growth:?} {end:?}");
    }
    let default = Horizons::default();
    assert!(default.page_seconds < default.ticket_seconds);
}
