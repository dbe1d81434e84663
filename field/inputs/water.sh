# Makes the input of a GROMACS run: a box of water, in the current directory.
set -e
printf '#include "oplsaa.ff/forcefield.itp"\n#include "oplsaa.ff/spce.itp"\n[ system ]\nwater\n[ molecules ]\n' > topol.top
gmx -quiet solvate -cs spc216 -box 5 5 5 -o conf.gro > solvate.log 2>&1
printf 'SOL %s\n' "$(grep -c ' OW' conf.gro)" >> topol.top
printf 'integrator = md\nnsteps = 120\ndt = 0.001\ncoulombtype = PME\nconstraints = none\ndefine = -DFLEXIBLE\ngen-vel = yes\ngen-seed = 7\n' > md.mdp
gmx -quiet grompp -f md.mdp -c conf.gro -p topol.top -o topol.tpr -maxwarn 5 > grompp.log 2>&1
