# Counts, sorts and rewrites the words of a file.
use strict;
use warnings;

my (%count, %by_length, @lines);
open my $file, '<', $ARGV[0] or die "no input";
while (my $line = <$file>) {
    chomp $line;
    push @lines, $line;
    for my $word (split /\s+/, $line) {
        $count{lc $word}++;
        push @{$by_length{length $word}}, $word;
    }
}
close $file;

my @most = (sort { $count{$b} <=> $count{$a} or $a cmp $b } keys %count)[0 .. 19];
print "$_ $count{$_}\n" for @most;
printf "%d: %d %s\n", $_, scalar @{$by_length{$_}}, (sort @{$by_length{$_}})[0]
    for sort { $a <=> $b } keys %by_length;

my $changed = 0;
for (@lines) {
    $changed += s/\b(\w)(\w*?)(\w)\b/$3$2$1/g;
    $changed += tr/aeiou//;
    $changed++ if /^(?:(\w+) ).*\b\1\b/;
}
print "$changed\n", substr(join('|', @lines[100 .. 103]), 0, 200), "\n";

my $sum = 0;
for my $i (1 .. 200000) {
    $sum = ($sum * 31 + $i) % 1000003;
}
print "$sum\n";

sub fails { my $n = shift; die { code => $n } if $n % 3 == 0; return $n }
my ($good, $bad) = (0, 0);
for my $n (1 .. 5000) {
    my $value = eval { fails($n) };
    if ($@) { $bad += $@->{code} } else { $good += $value }
}
print "$good $bad\n";

my $big = join '', map { sprintf '%03d', $_ * 7 % 1000 } 1 .. 500;
my $packed = pack 'N*', map { $_ * 65537 } 1 .. 1000;
print length $big, ' ', unpack('%32C*', $packed), "\n";
print join(',', map { sprintf '%.6g', sqrt($_) * exp($_ / 50) + sin $_ } 1 .. 20), "\n";
