//! A small seeded generator of random numbers.
//!
//! Its own, because a published corpus must be the same with every version of every library.

/// SplitMix64: one word of state, one multiplication more than none.
#[derive(Clone, Debug)]
pub struct Rng(u64);

/// Mixes a word so that neighbours have nothing in common.
pub fn mix(word: u64) -> u64 {
    let word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    word ^ (word >> 31)
}

/// Two to this power. Only additions and multiplications, which are the same on every machine;
/// the library of the system need not be.
pub fn exp2(power: f64) -> f64 {
    let whole = power.floor();
    let rest = (power - whole) * core::f64::consts::LN_2;
    let (mut sum, mut term) = (1.0, 1.0);
    for index in 1..18 {
        term *= rest / f64::from(index);
        sum += term;
    }
    let exponent = (1_023.0 + whole).clamp(1.0, 2_046.0) as u64;
    sum * f64::from_bits(exponent << 52)
}

/// The logarithm to base two of a positive number, by the same means.
pub fn log2(value: f64) -> f64 {
    let bits = value.max(f64::MIN_POSITIVE).to_bits();
    let whole = (bits >> 52) as f64 - 1_023.0;
    let mantissa = f64::from_bits((bits & ((1 << 52) - 1)) | (1_023 << 52));
    let ratio = (mantissa - 1.0) / (mantissa + 1.0);
    let (mut sum, mut power) = (0.0, ratio);
    for index in 0..24 {
        sum += power / f64::from(2 * index + 1);
        power *= ratio * ratio;
    }
    whole + 2.0 * sum / core::f64::consts::LN_2
}

impl Rng {
    /// A generator for one purpose (`tag`) of one seed.
    pub fn new(seed: u64, tag: u64) -> Self {
        Self(mix(seed ^ mix(tag.wrapping_add(0x9e37_79b9_7f4a_7c15))))
    }

    /// The next word.
    pub fn word(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.0)
    }

    /// From `low` up to and without `high`; `low` where there is nothing between.
    pub fn between(&mut self, low: u64, high: u64) -> u64 {
        let span = high.saturating_sub(low);
        if span == 0 { low } else { low + self.word() % span }
    }

    /// From 0 up to and without 1.
    pub fn unit(&mut self) -> f64 {
        (self.word() >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// True with this probability.
    pub fn chance(&mut self, probability: f64) -> bool {
        self.unit() < probability
    }

    /// Between `low` and `high`, each order of magnitude alike.
    pub fn log_uniform(&mut self, low: f64, high: f64) -> f64 {
        low * exp2(self.unit() * log2(high / low))
    }

    /// The bell curve around 0 with deviation 1, from twelve draws.
    pub fn normal(&mut self) -> f64 {
        (0..12).map(|_| self.unit()).sum::<f64>() - 6.0
    }

    /// One of these; the first where there is none to choose.
    pub fn pick<T: Copy>(&mut self, of: &[T]) -> Option<T> {
        of.get(self.between(0, of.len() as u64) as usize).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_the_same_everywhere() {
        let mut rng = Rng::new(7, 1);
        let words: Vec<u64> = (0..3).map(|_| rng.word()).collect();
        let mut again = Rng::new(7, 1);
        assert_eq!(words, (0..3).map(|_| again.word()).collect::<Vec<_>>());
        assert_ne!(words.first().copied(), Some(Rng::new(7, 2).word()));
        let mean = (0..10_000).map(|_| rng.unit()).sum::<f64>() / 10_000.0;
        assert!((mean - 0.5).abs() < 0.02, "{mean}");
        let spread = (0..10_000).map(|_| rng.normal().powi(2)).sum::<f64>() / 10_000.0;
        assert!((spread - 1.0).abs() < 0.1, "{spread}");
        for power in [-3.5, 0.0, 0.1, 10.9] {
            assert!((log2(exp2(power)) - power).abs() < 1e-9, "{power}");
            assert!((exp2(power) - power.exp2()).abs() < 1e-9 * power.exp2(), "{power}");
        }
        for _ in 0..1_000 {
            assert!((3..9).contains(&rng.between(3, 9)));
            let value = rng.log_uniform(0.25, 64.0);
            assert!((0.25..64.0).contains(&value));
        }
    }
}
