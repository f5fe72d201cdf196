//! Parts that the benches share.
#![allow(dead_code)] // not every one needs all of it

use streaming_gp::{Jitter, Likelihood, Model, Points, Shape, Stationary};

/// A constant, and what varies around it.
pub type FieldKernel = Stationary;

/// A field as in a building.
pub fn model() -> Model<FieldKernel> {
    Model {
        kernel: Stationary { constant: Some(500.0), shape: Shape::Matern52, variance: 150.0, lengthscales: vec![0.7] },
        noise: 2.0,
        mean: 0.0,
        likelihood: Likelihood::Gaussian,
        jitter: Jitter::Relative(1e-6),
    }
}

/// A side of a square at which `size` points lie about half a lengthscale apart.
pub fn side(size: usize) -> f64 {
    0.4 * (size as f64).sqrt()
}

/// Points spread evenly over a square (a Weyl sequence), from number `first` on, and a smooth field there.
pub fn readings(first: usize, count: usize, side: f64) -> (Points, Vec<f64>) {
    let mut places = Points::new(2);
    let mut targets = Vec::new();
    for i in first..first + count {
        let x = side * (i as f64 * 0.754_877_666_246_693).fract();
        let y = side * (i as f64 * 0.569_840_290_998_053).fract();
        places.push(&[x, y]);
        targets.push(50.0 + 10.0 * (1.3 * x).sin() * (1.1 * y).cos() + (i as f64 * 7.7).sin());
    }
    (places, targets)
}
