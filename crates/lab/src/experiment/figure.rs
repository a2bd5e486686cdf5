//! Figures: small expressions over the metrics of an experiment's points, such as
//! `tpmc[variant=lru-c] / tpmc[variant=vanilla57]` or `io_ms[variant=a] < io_ms[variant=b] < io_ms[variant=c]`.
//!
//! A metric with a selector stands for the values of all points that match it; by itself for their median. `median`,
//! `mean`, `min`, `max`, `count`, `spread` (largest less smallest, over the largest) and `sum` take such sets, or
//! several numbers. `along(axis, figure)` is the set of a figure's values at each value of an axis, in its order;
//! `at_min`, `at_max` say where on the axis, `rise` how far a later value exceeds an earlier one. Comparisons give 1 or
//! 0 and may be chained; `and` joins them. Pure.

use std::collections::BTreeMap;

/// What a figure is computed from: one point's axes and metrics.
#[derive(Clone, Copy)]
pub(super) struct Values<'a> {
    pub axes: &'a [(String, String)],
    pub metrics: &'a BTreeMap<String, f64>,
}

/// Why a figure has no value.
#[derive(Debug, Clone, PartialEq)]
pub enum FigureError {
    /// The expression is wrong.
    Syntax(String),
    /// No point matches a selector: it was not run.
    NotMeasured(String),
}

impl std::fmt::Display for FigureError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (FigureError::Syntax(what) | FigureError::NotMeasured(what)) = self;
        f.write_str(what)
    }
}

#[derive(Debug, Clone, PartialEq)]
enum Node {
    Number(f64),
    Metric(String, Vec<(String, String)>),
    Call(String, Vec<Node>),
    Along(String, Box<Node>),
    Binary(char, Box<Node>, Box<Node>),
    Chain(Vec<Node>, Vec<&'static str>),
    Negative(Box<Node>),
}

/// A parsed figure.
#[derive(Debug, Clone, PartialEq)]
pub struct Figure(Node);

const FUNCTIONS: [&str; 12] =
    ["median", "mean", "min", "max", "sum", "count", "spread", "abs", "along", "at_min", "at_max", "rise"];

struct Parser<'a> {
    rest: &'a str,
    whole: &'a str,
}

impl<'a> Parser<'a> {
    fn fail<T>(&self, what: &str) -> Result<T, FigureError> {
        let at = self.whole.len() - self.rest.len();
        Err(FigureError::Syntax(format!("{what} at byte {at} of {:?}", self.whole)))
    }

    fn skip(&mut self) {
        self.rest = self.rest.trim_start();
    }

    fn eat(&mut self, token: &str) -> bool {
        self.skip();
        match self.rest.strip_prefix(token) {
            Some(rest) => {
                self.rest = rest;
                true
            }
            None => false,
        }
    }

    fn take(&mut self, keep: impl Fn(char) -> bool) -> &'a str {
        let end = self.rest.find(|c| !keep(c)).unwrap_or(self.rest.len());
        let (head, rest) = self.rest.split_at(end);
        self.rest = rest;
        head
    }

    fn all(&mut self) -> Result<Node, FigureError> {
        let mut node = self.comparison()?;
        while self.eat("and ") {
            node = Node::Call("min".into(), vec![node, self.comparison()?]);
        }
        Ok(node)
    }

    fn comparison(&mut self) -> Result<Node, FigureError> {
        let mut terms = vec![self.sum()?];
        let mut signs = Vec::new();
        while let Some(sign) = ["<=", ">=", "<", ">", "=="].into_iter().find(|s| self.eat(s)) {
            signs.push(sign);
            terms.push(self.sum()?);
        }
        Ok(if signs.is_empty() { terms.remove(0) } else { Node::Chain(terms, signs) })
    }

    fn sum(&mut self) -> Result<Node, FigureError> {
        let mut node = self.product()?;
        while let Some(sign) = ['+', '-'].into_iter().find(|s| self.eat(s.encode_utf8(&mut [0; 4]))) {
            node = Node::Binary(sign, Box::new(node), Box::new(self.product()?));
        }
        Ok(node)
    }

    fn product(&mut self) -> Result<Node, FigureError> {
        let mut node = self.atom()?;
        while let Some(sign) = ['*', '/'].into_iter().find(|s| self.eat(s.encode_utf8(&mut [0; 4]))) {
            node = Node::Binary(sign, Box::new(node), Box::new(self.atom()?));
        }
        Ok(node)
    }

    fn atom(&mut self) -> Result<Node, FigureError> {
        if self.eat("-") {
            return Ok(Node::Negative(Box::new(self.atom()?)));
        }
        if self.eat("(") {
            let node = self.all()?;
            return if self.eat(")") { Ok(node) } else { self.fail("a closing parenthesis is missing") };
        }
        self.skip();
        if self.rest.starts_with(|c: char| c.is_ascii_digit()) {
            let text = self.take(|c| c.is_ascii_digit() || c == '.' || c == 'e');
            return text.parse().map(Node::Number).or_else(|_| self.fail("a number is malformed"));
        }
        let name = self.take(|c| c.is_ascii_alphanumeric() || c == '_' || c == '.').to_string();
        if name.is_empty() {
            return self.fail("a number, a metric, a function or a parenthesis is expected");
        }
        if self.eat("(") {
            return self.call(name);
        }
        Ok(Node::Metric(name, self.selector()?))
    }

    fn call(&mut self, name: String) -> Result<Node, FigureError> {
        if !FUNCTIONS.contains(&name.as_str()) {
            return self.fail(&format!("there is no function {name}; there are {}", FUNCTIONS.join(", ")));
        }
        if name == "along" {
            return self.along();
        }
        let mut arguments = vec![self.all()?];
        while self.eat(",") {
            arguments.push(self.all()?);
        }
        if self.eat(")") { Ok(Node::Call(name, arguments)) } else { self.fail("a closing parenthesis is missing") }
    }

    /// What follows `along(`.
    fn along(&mut self) -> Result<Node, FigureError> {
        self.skip();
        let axis = self.take(|c| !",()".contains(c)).trim().to_string();
        if axis.is_empty() || !self.eat(",") {
            return self.fail("along reads along(axis, figure)");
        }
        let node = Node::Along(axis, Box::new(self.all()?));
        if self.eat(")") { Ok(node) } else { self.fail("a closing parenthesis is missing") }
    }

    fn selector(&mut self) -> Result<Vec<(String, String)>, FigureError> {
        let mut parts = Vec::new();
        if !self.rest.starts_with('[') {
            return Ok(parts);
        }
        self.eat("[");
        loop {
            self.skip();
            let axis = self.take(|c| c != '=' && c != ']').trim().to_string();
            if axis.is_empty() || !self.eat("=") {
                return self.fail("a selector reads [axis=value, ..]");
            }
            self.skip();
            let value = self.take(|c| c != ',' && c != ']').trim().trim_matches(['"', '\'']).to_string();
            parts.push((axis, value));
            if self.eat("]") {
                return Ok(parts);
            }
            if !self.eat(",") {
                return self.fail("a selector ends with ]");
            }
        }
    }
}

/// Whether a point's value is the one wanted, or lies in the range wanted: `0.05..0.95`, ends included.
fn same(has: &str, wanted: &str) -> bool {
    let number = |text: &str| text.trim().parse::<f64>().ok();
    if has == wanted {
        return true;
    }
    let Some(value) = number(has) else { return false };
    match wanted.split_once("..").map(|(low, high)| (number(low), number(high))) {
        Some((Some(low), Some(high))) => (low..=high).contains(&value),
        _ => number(wanted) == Some(value),
    }
}

/// The values of an axis that points have, numbers in their order; others after them, with no place.
fn places<'a>(axis: &str, points: &[Values<'a>]) -> Vec<(f64, &'a str)> {
    let mut all: Vec<(f64, &str)> = Vec::new();
    for (_, value) in points.iter().flat_map(|p| p.axes).filter(|(name, _)| name == axis) {
        if !all.iter().any(|(_, known)| known == value) {
            all.push((value.parse().unwrap_or(f64::NAN), value));
        }
    }
    all.sort_by(|a, b| a.0.total_cmp(&b.0).then_with(|| a.1.cmp(b.1)));
    all
}

/// The median; of an even number the mean of the two in the middle.
pub(super) fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    let n = values.len();
    if n.is_multiple_of(2) { (values[n / 2 - 1] + values[n / 2]) / 2.0 } else { values[n / 2] }
}

fn bit(b: bool) -> f64 {
    f64::from(u8::from(b))
}

impl Node {
    /// Whether its value is 1 or 0: it holds or it does not.
    fn is_order(&self) -> bool {
        match self {
            Node::Chain(..) => true,
            Node::Call(name, parts) => name == "min" && parts.iter().all(Node::is_order),
            _ => false,
        }
    }
}

impl Figure {
    /// Whether it is a comparison, or several joined: 1 for yes, 0 for no.
    pub(super) fn is_order(&self) -> bool {
        self.0.is_order()
    }

    /// Parses a figure.
    pub fn parse(text: &str) -> Result<Figure, FigureError> {
        let mut parser = Parser { rest: text, whole: text };
        let node = parser.all()?;
        parser.skip();
        if !parser.rest.is_empty() {
            return parser.fail("something is left over");
        }
        Ok(Figure(node))
    }

    /// Axes that its selectors name.
    pub(super) fn axes(&self) -> Vec<String> {
        let mut found = Vec::new();
        self.0.axes(&mut found);
        found
    }

    /// Of a figure that is a set along an axis: the places and values.
    pub(super) fn along(&self, points: &[Values<'_>]) -> Result<Vec<(f64, f64)>, FigureError> {
        self.0.along(points)
    }

    /// Its value over the points.
    pub(super) fn value(&self, points: &[Values<'_>]) -> Result<f64, FigureError> {
        self.0.value(points)
    }
}

impl Node {
    fn axes(&self, found: &mut Vec<String>) {
        match self {
            Node::Number(_) => {}
            Node::Metric(_, selector) => found.extend(selector.iter().map(|(axis, _)| axis.clone())),
            Node::Along(axis, node) => {
                found.push(axis.clone());
                node.axes(found);
            }
            Node::Call(_, nodes) | Node::Chain(nodes, _) => nodes.iter().for_each(|n| n.axes(found)),
            Node::Binary(_, a, b) => {
                a.axes(found);
                b.axes(found);
            }
            Node::Negative(a) => a.axes(found),
        }
    }

    fn set(&self, points: &[Values<'_>]) -> Result<Vec<f64>, FigureError> {
        let (name, selector) = match self {
            Node::Metric(name, selector) => (name, selector),
            Node::Along(..) => return Ok(self.along(points)?.into_iter().map(|(_, value)| value).collect()),
            _ => return Ok(vec![self.value(points)?]),
        };
        let wanted = |p: &&Values<'_>| {
            selector.iter().all(|(axis, value)| p.axes.iter().any(|(a, v)| a == axis && same(v, value)))
        };
        let matching: Vec<&Values<'_>> = points.iter().filter(wanted).collect();
        if matching.is_empty() {
            let parts: Vec<String> = selector.iter().map(|(a, v)| format!("{a}={v}")).collect();
            return Err(FigureError::NotMeasured(format!("no point with {}", parts.join(", "))));
        }
        let found: Vec<f64> = matching.iter().filter_map(|p| p.metrics.get(name).copied()).collect();
        if found.is_empty() {
            let names: Vec<&str> = matching[0].metrics.keys().map(String::as_str).collect();
            return Err(FigureError::Syntax(format!("there is no metric {name}; there are {}", names.join(", "))));
        }
        Ok(found)
    }

    /// Places and values along an axis, where they were measured.
    fn along(&self, points: &[Values<'_>]) -> Result<Vec<(f64, f64)>, FigureError> {
        let Node::Along(axis, node) = self else {
            return Err(FigureError::Syntax("along(axis, figure) is expected".into()));
        };
        let mut found = Vec::new();
        let mut missing = FigureError::NotMeasured(format!("no point with an axis {axis}"));
        for (place, value) in places(axis, points) {
            let there = |p: &&Values<'_>| p.axes.iter().any(|(name, v)| name == axis && v == value);
            let there: Vec<Values<'_>> = points.iter().filter(there).copied().collect();
            match node.value(&there) {
                Ok(value) => found.push((place, value)),
                Err(why @ FigureError::NotMeasured(_)) => missing = why,
                Err(wrong) => return Err(wrong),
            }
        }
        if found.is_empty() { Err(missing) } else { Ok(found) }
    }

    fn value(&self, points: &[Values<'_>]) -> Result<f64, FigureError> {
        match self {
            Node::Number(n) => Ok(*n),
            Node::Along(..) => Ok(median(&mut self.set(points)?)),
            Node::Metric(..) => Ok(median(&mut self.set(points)?)),
            Node::Negative(a) => Ok(-a.value(points)?),
            Node::Binary(sign, a, b) => {
                let (a, b) = (a.value(points)?, b.value(points)?);
                Ok(match sign {
                    '+' => a + b,
                    '-' => a - b,
                    '*' => a * b,
                    _ => a / b,
                })
            }
            Node::Chain(terms, signs) => {
                let values = terms.iter().map(|t| t.value(points)).collect::<Result<Vec<_>, _>>()?;
                let holds = |(pair, sign): (&[f64], &&str)| match *sign {
                    "<" => pair[0] < pair[1],
                    "<=" => pair[0] <= pair[1],
                    ">" => pair[0] > pair[1],
                    ">=" => pair[0] >= pair[1],
                    _ => pair[0] == pair[1],
                };
                Ok(bit(values.windows(2).zip(signs).all(holds)))
            }
            Node::Call(name, nodes) if ["at_min", "at_max"].contains(&name.as_str()) => {
                let sign = if name == "at_min" { 1.0 } else { -1.0 };
                let found = nodes[0].along(points)?;
                Ok(found.into_iter().min_by(|a, b| (sign * a.1).total_cmp(&(sign * b.1))).map_or(f64::NAN, |f| f.0))
            }
            Node::Call(name, nodes) => {
                let mut all = Vec::new();
                for node in nodes {
                    all.extend(node.set(points)?);
                }
                Ok(call(name, &mut all))
            }
        }
    }
}

/// The most that a value exceeds one before it, as a share of that one; 0 if none does.
fn rise(all: &[f64]) -> f64 {
    let least = |n: usize| all[..n].iter().copied().fold(f64::INFINITY, f64::min);
    (1..all.len()).map(|n| all[n] / least(n) - 1.0).fold(0.0, f64::max)
}

fn call(name: &str, all: &mut [f64]) -> f64 {
    let (n, sum) = (all.len() as f64, all.iter().sum::<f64>());
    let least = all.iter().copied().fold(f64::INFINITY, f64::min);
    let most = all.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    match name {
        "median" => median(all),
        "mean" => sum / n,
        "min" => least,
        "max" => most,
        "sum" => sum,
        "count" => n,
        "spread" => (most - least) / most,
        "rise" => rise(all),
        _ => all[0].abs(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn eval(text: &str) -> Result<f64, FigureError> {
        let axes = |v: &str, c: &str| {
            let n = if c == "5 %" { "1" } else { "2.0" };
            vec![("variant".to_string(), v.to_string()), ("cache".into(), c.into()), ("n".into(), n.into())]
        };
        let points = [
            (axes("a", "5 %"), BTreeMap::from([("tpmc".to_string(), 10.0), ("data.reads".into(), 3.0)])),
            (axes("a", "10 %"), BTreeMap::from([("tpmc".to_string(), 30.0)])),
            (axes("b", "5 %"), BTreeMap::from([("tpmc".to_string(), 5.0)])),
            (axes("b", "10 %"), BTreeMap::from([("tpmc".to_string(), 6.0)])),
        ];
        let values: Vec<Values> = points.iter().map(|(axes, metrics)| Values { axes, metrics }).collect();
        Figure::parse(text)?.value(&values)
    }

    #[test]
    fn figures_are_computed() {
        for (text, value) in [
            ("1 + 2 * 3 - 4 / 2", 5.0),
            ("-(1 + 1) * 2", -4.0),
            ("tpmc[variant=a, cache=5 %] / tpmc[variant=b, cache=\"5 %\"]", 2.0),
            ("tpmc[variant=a]", 20.0),
            ("median(tpmc)", 8.0),
            ("max(tpmc[variant=b]) - min(tpmc[variant=b])", 1.0),
            ("spread(tpmc[variant=b])", 1.0 / 6.0),
            ("max(tpmc[variant=b], 7)", 7.0),
            ("count(tpmc[cache=5 %])", 2.0),
            ("tpmc[variant=a,cache=5 %] > tpmc[variant=b,cache=10 %] > tpmc[variant=b,cache=5 %]", 1.0),
            ("1 < 2 and 2 < 1", 0.0),
            ("data.reads[variant=a]", 3.0),
            ("abs(1 - 3) >= 2", 1.0),
            ("mean(tpmc[n=1..2])", 12.75),
            ("tpmc[n=2..9, variant=b]", 6.0),
            ("at_min(along(n, tpmc[variant=b]))", 1.0),
            ("at_max(along(n, tpmc[variant=b] / tpmc[variant=a]))", 1.0),
            ("rise(along(n, tpmc[variant=a]))", 2.0),
            ("rise(along(n, tpmc[variant=b] / tpmc[variant=a]))", 0.0),
            ("max(along(variant, spread(along(n, tpmc))))", 2.0 / 3.0),
            ("count(along(n, tpmc[n=2..9]))", 1.0),
        ] {
            assert_eq!(eval(text), Ok(value), "{text}");
        }
    }

    #[test]
    fn mistakes_are_told() {
        for (text, part) in [
            ("1 +", "expected"),
            ("(1", "parenthesis"),
            ("avg(tpmc)", "median"),
            ("tpmc[variant]", "selector"),
            ("1 2", "left over"),
            ("tpm", "tpmc"),
            ("along(n tpmc)", "along(axis"),
            ("at_min(tpmc)", "along(axis"),
        ] {
            match eval(text) {
                Err(FigureError::Syntax(what)) => assert!(what.contains(part), "{text}: {what}"),
                other => panic!("{text}: {other:?}"),
            }
        }
        assert!(matches!(eval("tpmc[variant=c]"), Err(FigureError::NotMeasured(_))));
    }
}
