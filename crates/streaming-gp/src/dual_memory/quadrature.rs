//! Gauss-Hermite quadrature: expectations under the standard normal.

use std::sync::LazyLock;

/// Exact for polynomials up to degree 39.
const COUNT: usize = 20;

pub(super) static NODES: LazyLock<[(f64, f64); COUNT]> = LazyLock::new(compute);

/// The nodes are the roots of the Hermite polynomial of degree [`COUNT`]. The roots of each degree lie between those of the next, so
/// that bisection finds them all from degree 1 upwards. The weights are those of Christoffel: 1 / sum_j h_j(x)^2.
fn compute() -> [(f64, f64); COUNT] {
    let mut roots: Vec<f64> = Vec::new();
    for degree in 1..=COUNT {
        let beyond = 2.0 * (degree as f64).sqrt();
        let limits: Vec<f64> = [-beyond].into_iter().chain(roots).chain([beyond]).collect();
        roots = limits.windows(2).map(|limits| bisect(degree, limits[0], limits[1])).collect();
    }
    std::array::from_fn(|i| {
        let squares: f64 = polynomials(roots[i])[..COUNT].iter().map(|value| value * value).sum();
        (roots[i], 1.0 / squares)
    })
}

/// h_0(x) to h_COUNT(x): Hermite polynomials, orthonormal under the standard normal.
fn polynomials(x: f64) -> [f64; COUNT + 1] {
    let mut values = [1.0; COUNT + 1];
    values[1] = x;
    for degree in 2..=COUNT {
        let n = degree as f64;
        values[degree] = (x * values[degree - 1] - (n - 1.0).sqrt() * values[degree - 2]) / n.sqrt();
    }
    values
}

/// The one root of h_degree between two numbers.
fn bisect(degree: usize, mut low: f64, mut high: f64) -> f64 {
    let is_above = polynomials(high)[degree] > 0.0;
    loop {
        let middle = 0.5 * (low + high);
        if middle <= low || middle >= high {
            return middle;
        }
        if (polynomials(middle)[degree] > 0.0) == is_above { high = middle } else { low = middle }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn expect(integrand: impl Fn(f64) -> f64) -> f64 {
        NODES.iter().map(|&(node, weight)| weight * integrand(node)).sum()
    }

    #[test]
    fn the_moments_are_those_of_the_standard_normal() {
        let mut expected = 1.0;
        for half in 0..COUNT as i32 {
            let found = expect(|x| x.powi(2 * half));
            // A few dozen roundings, of powers of nodes whose last bit counts as often as their power.
            assert!((found / expected - 1.0).abs() < 1e-12, "{half}: {found} {expected}");
            assert!(expect(|x| x.powi(2 * half + 1)).abs() < 1e-10 * expected.max(1.0), "{half}");
            expected *= f64::from(2 * half + 1);
        }
        // Degree 40 is the first to be missed: by 20!, the squared norm of the monic polynomial whose roots are the nodes.
        let missed: f64 = (1..=20).map(f64::from).product();
        assert!((expect(|x| x.powi(40)) / (expected - missed) - 1.0).abs() < 1e-12);
    }

    #[test]
    fn entire_functions_are_integrated_exactly() {
        // The remainders are E[x^40] / 40! = 4e-25 and less; what is seen is rounding.
        assert!((expect(f64::cos) - (-0.5f64).exp()).abs() < 1e-14);
        assert!((expect(f64::exp) - 0.5f64.exp()).abs() < 1e-14);
    }
}
