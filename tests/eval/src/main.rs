//! tmp
use memtape_eval::families::families;
fn main() {
    let only = std::env::args().nth(1);
    let mib = 1u64 << 20;
    for family in families() {
        if only.as_deref().is_some_and(|o| o != family.name) {
            continue;
        }
        let t = std::time::Instant::now();
        let mut ok = 0;
        let mut line = String::new();
        for seed in 0..6 {
            let Some(s) = family.scenario(seed, 512) else { continue };
            ok += 1;
            if seed < 3 {
                let r = s.fault.as_ref().map_or(0, |f| f.ranks[0]);
                let on = s.fault.as_ref().map_or(1, |f| f.onset);
                let lay =
                    s.fault.as_ref().map_or(memtape_eval::job::Layer::Allocated, |f| f.layers[0]);
                let at = |k: u64| {
                    let st = (on + (s.steps - on) * k / 4).max(1);
                    lay.of(s.step(r, st).unwrap())
                        / if lay == memtape_eval::job::Layer::Blocks { 1 } else { mib }
                };
                let rs = |k: u64| {
                    let st = (on + (s.steps - on) * k / 4).max(1);
                    s.step(r, st).unwrap().reserved / mib
                };
                line += &format!(
                    "\n   n={} dev={}G steps={} oom={:?} on={} {} {:?} res {:?} {:?}",
                    s.ranks,
                    s.device_bytes >> 30,
                    s.steps,
                    s.oom,
                    on,
                    lay.name(),
                    [at(0), at(1), at(2), at(3), at(4)],
                    [rs(0), rs(2), rs(4)],
                    s.notes
                );
            }
        }
        println!("{:24} ok {ok}/6 {:.2}s{}", family.name, t.elapsed().as_secs_f64() / 6.0, line);
    }
}
